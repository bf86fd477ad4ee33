"""A Keras model of a class that a fresh process can import and that describes itself."""

from __future__ import annotations

import keras


@keras.saving.register_keras_serializable("tests")
class Net(keras.Model):
    def __init__(self, width: int, **more) -> None:
        super().__init__(**more)
        self.width = width
        self.body = keras.layers.Dense(width)

    def call(self, inputs):
        return self.body(inputs)

    def get_config(self):
        return {**super().get_config(), "width": self.width}

"""A process with the unmodified official client, driven by JSON lines. Run as a program by ``conftest.Client``."""

import contextlib
import io
import json
import sys
import traceback


def main():
    out = sys.stdout
    with contextlib.redirect_stdout(io.StringIO()):
        from kaggle.api.kaggle_api_extended import KaggleApi

        api = KaggleApi()
        api.authenticate()
    for line in sys.stdin:
        said = io.StringIO()
        try:
            with contextlib.redirect_stdout(said), contextlib.redirect_stderr(io.StringIO()):
                scope = {"api": api}
                exec(json.loads(line), scope)
            answer = {"result": scope.get("result")}
        except BaseException as error:  # also what exits
            response = getattr(error, "response", None)
            answer = {
                "error": type(error).__name__,
                "message": str(error),
                "status": getattr(response, "status_code", None),
                "text": getattr(response, "text", None),
                "headers": dict(getattr(response, "headers", None) or {}),
                "trace": traceback.format_exc(),
            }
        out.write(json.dumps({**answer, "said": said.getvalue()}) + "\n")
        out.flush()


main()

"""A session on this machine that outlives the process that started it.

A host is a detached process of its own: it sees a ``LocalSession`` to its end in a folder, and writes there how it
stands. The local platform and the Kaggle emulator both run their sessions this way, so there is one mechanism.

    folder/spec.json     what to run
    folder/state.json    how it stands, replaced atomically
    folder/kept/         log.txt, report.json
    folder/output/       what it left, when it has ended
"""

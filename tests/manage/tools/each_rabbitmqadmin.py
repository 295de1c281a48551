"""Runs Debian's rabbitmqadmin once per line of standard input, to start only one interpreter for all tests.

Shapes: a line is `{"words": [...], "input": "..."}`, an answer is `{"code": 0, "out": "...", "err": "..."}`.
"""

from __future__ import annotations

import json
import sys
import traceback
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path


def main(script: Path) -> None:
    """Run the whole script anew for each line."""
    code = compile(script.read_text(encoding="utf-8"), str(script), "exec")
    answers, lines = sys.stdout, sys.stdin
    for line in lines:
        request = json.loads(line)
        sys.argv = [str(script), *request["words"]]
        sys.stdin = StringIO(request["input"])
        out, err = StringIO(), StringIO()
        exit_code = 0
        with redirect_stdout(out), redirect_stderr(err):
            try:
                exec(code, {"__name__": "__main__", "__file__": str(script)})
            except SystemExit as end:
                exit_code = int(end.code or 0)
            except Exception:  # noqa: BLE001 - the output that a user would see
                traceback.print_exc()
                exit_code = 1
        print(json.dumps({"code": exit_code, "out": out.getvalue(), "err": err.getvalue()}), file=answers, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

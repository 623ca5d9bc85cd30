"""`xyreward serve`: rewards over HTTP, for training loops that are not Python, not TRL, or elsewhere.

    guard.py (token, size, memory) -> app.py (forms) -> line.py (a bounded queue) -> the judge

A failed verdict is a 503, never a 200 with a number. docs/serve.md has the requests and answers.

    settings.py   where it listens, its limits, its token
    forms.py      the bodies of requests and answers
    openrlhf.py   the request of OpenRLHF's remote reward URL, taken apart
    line.py       what waits for a verdict: how much, how long, in which lots
    guard.py      who may ask, and how much is read of what they send
    metrics.py    counts for Prometheus
    app.py        the endpoints
    server.py     the socket, the signals, the end

Not here: how answers are judged (`judges/`), the command line (`cli_serve.py`).
"""

"""Making items of a source of one's own: `xyreward build`.

    stages.py     a stage: rows in, outcomes out; the funnel that adds up; provenance

Not here: what items are (`items.py`), how a model is asked and paid (`judges/asking.py`).
"""

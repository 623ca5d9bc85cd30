"""Making items of a source of one's own: `xyreward build`.

    stages.py      a stage: rows in, outcomes out; the funnel that adds up; provenance
    forum_job.py    a forum: threads to items (thread_files.py, prefilter.py, forum.py, card.py)

Not here: what items are (`items.py`), how a model is asked and paid (`judges/asking.py`).
"""

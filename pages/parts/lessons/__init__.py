"""The Learn page: what a lesson is, and the lessons themselves.

To touch: a lesson is one file, with its ``LESSON``, and one name in ``known.LESSONS``.
"""

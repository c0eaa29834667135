"""Modifications of plan files that must be detected."""


def changed(*path, value):
    """Return a function that changes the entry at ``path`` of a document.

    The new entry is ``value``, or ``value(old entry)`` if ``value`` is callable.
    """

    def change(document):
        for key in path[:-1]:
            document = document[key]
        document[path[-1]] = value(document[path[-1]]) if callable(value) else value

    return change

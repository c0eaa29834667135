"""Modifications of plan files that must be detected."""


def changed(*path, value):
    """Change one entry of a document to a value, or by a function of the old entry."""

    def change(document):
        for key in path[:-1]:
            document = document[key]
        document[path[-1]] = value(document[path[-1]]) if callable(value) else value

    return change

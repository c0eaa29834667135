"""Changes of plan files that must be noticed."""


def changed(*path, value):
    """Change one entry of a document, to a value or by a function of what it was."""

    def change(document):
        for key in path[:-1]:
            document = document[key]
        document[path[-1]] = value(document[path[-1]]) if callable(value) else value

    return change

"""The workbench in the browser: `streamlit run app.py`.

The guard keeps worker processes, which import the main module again, from drawing anything.
"""


def main() -> None:
    """Make the workers ready, then draw the frame with the chosen page."""
    from pages.parts.jobs import work
    from pages.parts.shell import frame

    work.warm()
    frame.start()


if __name__ == "__main__":
    main()

"""The workbench in the browser: `streamlit run app.py`.

This file is the frame around the pages.  The guard keeps worker processes, which import the main module again, from
drawing anything.
"""


def main() -> None:
    """Draw the sidebar and the chosen page."""
    import streamlit as st

    from pages.parts.jobs import work
    from pages.parts.shell import frame, link

    st.set_page_config(page_title="DP query workbench", page_icon="🔐", layout="wide")
    pages = [st.Page(p.file, title=p.title, icon=p.icon, default=p is frame.PAGES[0]) for p in frame.PAGES]
    chosen = st.navigation(pages)
    work.warm()
    link.restore()
    link.keep()
    with frame.drawn():
        frame.sidebar()
        chosen.run()


if __name__ == "__main__":
    main()

"""What a program pays that only says `import engine`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WHERE_USED = {"pandas", "scipy.optimize", "scipy.sparse", "sqlglot", "pyarrow.dataset", "joblib", "plotly", "streamlit"}


def test_what_takes_long_to_import_is_imported_where_it_is_used() -> None:
    code = "import sys, engine; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    loaded = set(run.stdout.split())
    assert "engine.release.records.counted" in loaded
    assert loaded & WHERE_USED == set()

"""Files of statistical and office programs: counts, labels and damage."""

from __future__ import annotations

import base64
import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyreadstat
import pytest

from engine.errors import DataError, EngineError, SchemaError
from engine.records import count_marginals
from engine.records.subprocess_readers import draft_schema
from engine.release.public_draft import draft_of_public
from engine.workload import Attribute, Schema
from tests.records.mixed import SCHEMA, SETS

LABELS = {
    "sex": {1: "woman", 2: "man", 8: "no answer", 9: "refused"},
    "work": {1.0: "paid", 2.0: "none"},
}
SURVEY = pd.DataFrame(
    {
        "sex": [1, 2, 2, 8, 9, 3, np.nan],
        "work": [1, 2, 2, 1, 1, 2, 1],
        "age": [30.0, 41.5, 7, 80, 99, 12, 3],
    }
)


@pytest.mark.usefixtures("in_process_readers")
@pytest.mark.parametrize("form", ["sav", "dta"])
def test_draft_schema_of_labels_fits_records(tmp_path: Path, form: str) -> None:
    path = tmp_path / f"survey.{form}"
    if form == "sav":  # sex has the missing code 9 and a range of missing codes
        missing_ranges = {"sex": [9, {"lo": 20, "hi": 30}]}
        pyreadstat.write_sav(
            SURVEY, path, variable_value_labels=LABELS, missing_ranges=missing_ranges
        )
        sex_by_work = [[1, 0], [0, 2], [1, 0], [2, 0]]
        refused = {"sex": {"outside the schema": 1}}
    else:
        pyreadstat.write_dta(SURVEY, path, variable_value_labels=LABELS)
        sex_by_work = [[1, 0], [0, 2], [1, 0], [1, 0]]
        refused = {"sex": {"outside the schema": 1, "missing": 1}}
    draft = draft_schema(path)
    assert draft.unlabelled == ("age",)
    assert draft.schema["sex"].labels == ("woman", "man", "no answer", "refused")
    assert draft.schema["sex"].missing == ("refused" if form == "sav" else None)
    counts = count_marginals(
        path, draft.schema, [("sex", "work")], on_refused="drop", ignore=["age"]
    )
    assert counts["sex", "work"].tolist() == sex_by_work
    assert counts.refused == refused
    ages = Schema([Attribute.numeric("age", [0, 50, 100])])
    assert count_marginals(path, ages, [("age",)])["age",].tolist() == [5, 2]
    with pytest.raises(DataError, match="numeric column 'age'"):
        count_marginals(path, draft.schema, [("sex",)], on_refused="drop")


def test_number_column_with_labelled_missing_codes_is_refused(tmp_path: Path) -> None:
    rows = pd.DataFrame({"sex": [1.0, 2.0], "region": [1.0, 2.0], "people": [70.0, -9.0]})
    labels = {
        "sex": {1.0: "F", 2.0: "M"},
        "region": {1.0: "north", 2.0: "south"},
        "people": {-9.0: "unknown"},
    }
    path, schema = tmp_path / "x.sav", Schema([Attribute.categorical("sex", ["F", "M"])])
    pyreadstat.write_sav(
        rows, path, variable_value_labels=labels, missing_ranges={"people": [-9.0]}
    )
    with pytest.raises(DataError, match="numeric column 'people'"):
        count_marginals(path, schema, [("sex",)], on_refused="drop")
    assert count_marginals(path, schema, [("sex",)], ignore=["people"]).records == 2


@pytest.mark.usefixtures("in_process_readers")
@pytest.mark.parametrize(
    ("form", "write"),
    [
        ("sav", pyreadstat.write_sav),
        ("dta", pyreadstat.write_dta),
        ("xpt", pyreadstat.write_xport),
    ],
    ids=["sav", "dta", "xpt"],
)
def test_truncated_labelled_file_is_refused(tmp_path: Path, form: str, write: Any) -> None:
    path = tmp_path / f"x.{form}"
    write(pd.DataFrame({"sex": [1.0] * 999, "age": [30.0] * 999}), path)
    schema = Schema([Attribute.of_size("sex", 3), Attribute.numeric("age", [0, 65])])
    assert count_marginals(path, schema, [("sex",)]).records == 999
    # cut off the end; a SAS transport file then ends within a record of 80 bytes
    path.write_bytes(path.read_bytes()[:-4321])
    with pytest.raises(DataError, match=rf"the file 'x\.{form}' (cannot be read|is incomplete)"):
        count_marginals(path, schema, [("sex",)], on_refused="drop")


def test_damaged_file_stops_only_its_reader(tmp_path: Path) -> None:
    path = tmp_path / "x.sav"
    rows = pd.DataFrame({"sex": ["F", "M"], "code": [0.0, 1.0]})
    pyreadstat.write_sav(rows, path, variable_value_labels={"code": {0.0: "no", 1.0: "yes"}})
    assert draft_schema(path).schema["code"].labels == ("no", "yes")
    content = path.read_bytes()
    # the record that assigns the labels to column 2; the reader crashes if it names column 1, which
    # has texts
    labels_of_code, labels_of_sex = (struct.pack("<iii", 4, 1, column) for column in (2, 1))
    assert content.count(labels_of_code) == 1
    path.write_bytes(content.replace(labels_of_code, labels_of_sex))
    for read in (draft_schema, draft_of_public, lambda file: count_marginals(file, SCHEMA, SETS)):
        with pytest.raises(DataError, match=r"the file 'x.sav' cannot be read"):
            read(path)


@pytest.mark.usefixtures("in_process_readers")
def test_public_draft_of_partly_labelled_column_keeps_values(tmp_path: Path) -> None:
    path, rows = tmp_path / "x.sav", pd.DataFrame({"work": [1.0, 2.0, 2.5, 99.0, np.nan]})
    pyreadstat.write_sav(rows, path, variable_value_labels={"work": {99.0: "refused", 1.0: "none"}})
    schema = draft_of_public(path).schema
    assert schema["work"].labels == ("2", "2.5", "none", "refused")
    counts = count_marginals(path, schema, [("work",)], on_refused="drop")
    assert counts["work",].tolist() == [1, 1, 1, 1]
    assert counts.refused == {"work": {"missing": 1}}


def test_draft_schema_without_labels_is_refused(tmp_path: Path) -> None:
    without_labels, damaged = tmp_path / "without labels.sav", tmp_path / "damaged.sav"
    pyreadstat.write_sav(SURVEY, without_labels)
    with pytest.raises(SchemaError, match="no column"):
        draft_schema(without_labels)
    damaged.write_bytes(b"CANARY7391")
    for path in (damaged, tmp_path / "missing.sav", tmp_path / "text.csv"):
        with pytest.raises(EngineError) as caught:
            draft_schema(path)
        assert "7391" not in str(caught.value)


SMALL = pd.DataFrame(
    {
        "SEX": ["F", "M", "", "x", "f", "F"],
        "AGE": [30.0, 19.5, None, 80, -3, 120],
        "CODE": [0, 4, 2, 5, 1, 3],
    }
)
# The records as compressed SAS and old Excel files.  No available library writes these formats.
ENCODED_FILES = {
    ".sas7bdat": (
        "c-rmSze@sP9LMpm8e!CMf`dcQ5e-doqC_p_k!J)-fesB3O+iajL0h&rME^>2AT5s77BsXsHC50LJH5vr&r_E*G)V84!}p%gJ>N$hPWZx!bY0vZ"
        "ZJi|(m*=N(8L6j_QxjGqBQhxwNz1pA+N$i9?ZQgY%exh~>{aYA(nqsD*jK%+@7=lGYG|HhiA0Tfe#S{V>5}8utY2q~JG=V_0ssI2000000002M"
        "e-!sWA~$2fYC5Lht*Ja^be*W&X$O&@Y^XeI<d({dMt(IK)SP*KNWK=50{{R3f8qV5(K4w0uR(ib?$Z<?G9=Mf?XDxu*KW0SFLhMI?j++9j1RV|"
        "Q+|)`P4$fTWaj(AWp7>FWlxq?^WLMcnHgh=Jo$d|d)sr%aLD~wzXPnV<A#AJ0|O}%JQ)QoT<DC~rQW!jQMsj$-`CHF>MEzde_v7ilDTdD-=-GS"
        "heiE+H`V?)<2?WX0002L@BvSSdb0"
    ),
    ".xls": (
        "c-rk)O=uHA6n?YW-Tcs|NlXi^5JJJKZ7<@*OB-8Fb84;jU=cx68$nu92_Ce9R%?!e;7RdP=*3Ibi$AEKH$kDI2SE^$dh{e%@z7>{^X+U+>K+=<"
        "`on(9yqS43-<!8HZ)Sg9FGfpq_u9&|4!z`~iWMZYN+&o4ol1nb-LhoS$pf4$5C0T`0bWScpvR4`{BjNDdY4I~yZUpML`$5G(rFr+%IA`sh<^Bx"
        "71D<umV$1vCQPmHDh7E1atq`g^n3!j7n-Y(J>0h>j?iLisB@2s;!&*~ZDEpjAAs{7nqAaPFJu&7ye90v2K5zAWhej6hJ@Zg^Tg|x$>no}>|}}J"
        "ynyqxY$b`lI6L)O($jCQUJ&cQ)$08&`s<obG(*;L1bC4T*Oxwffk#%T3+Jial&l*`kFxB`q?xeq!2UGH!2qX0PG>ot49TMzTRBp*l^YS_4J^m0"
        "3FRmPJ;KIUZhw9=I5wO*2F(nHvk&=g(l4^;l4LMBj20M`&QK>9U67Yybt}qkkZ}%A&O3&iRbgNjeXgLjgU8toyiIMdD(~QO@zcSFiQ>o9PA)HG"
        "%G2?Mcd0pQ=Xn`tzPx6sTXc(?HzXdVoLr~_;R9srPlrQ5izweM^(1SeRSKaPg|usOcEnmuQ*$NR!i6osmh<tH#}{BvL#Kf)d72APLmyr7>@_)`"
        "kh<6!&$o_uK?`wRdK6L~=`NOaST>Yp9hUor)U~WxHe7fHc&6eR;C<zXgRQf9rVG!knE?~LC5#sauUCuFeR;clB>zB&Jb3Wn!Gi}69z6Up2)wA-"
        "ul4fv(NG@_e)V5xl~cw0P4eI35KZxQhCfWxl;^xa=jw`|7BYlmOKgzi{4bO^%%c}*g2v#-MBVYrA5fzDel|>u{JJev@A#E^{QS-1e+O1p)dB"
    ),
}


def write_open_document(path: Path) -> None:
    """Write a minimal OpenDocument sheet."""

    def cell(value: Any) -> str:
        if value == "" or pd.isna(value):
            return "<table:table-cell/>"
        if isinstance(value, str):
            return (
                "<table:table-cell"
                f' office:value-type="string"><text:p>{value}</text:p></table:table-cell>'
            )
        return f'<table:table-cell office:value-type="float" office:value="{value}"/>'

    spaces = "".join(
        f' xmlns:{n}="urn:oasis:names:tc:opendocument:xmlns:{n}:1.0"'
        for n in ("office", "table", "text")
    )
    rows = "".join(
        f"<table:table-row>{''.join(map(cell, row))}</table:table-row>"
        for row in [list(SMALL.columns), *SMALL.to_numpy(object).tolist()]
    )
    with zipfile.ZipFile(path, "w") as book:
        book.writestr("mimetype", "application/vnd.oasis.opendocument.spreadsheet")
        book.writestr("META-INF/manifest.xml", "<manifest/>")
        book.writestr(
            "content.xml",
            f"<office:document-content{spaces}><office:body><office:spreadsheet><table:table"
            f" table:name='S'>{rows}"
            "</table:table></office:spreadsheet></office:body></office:document-content>",
        )


def write_small(path: Path) -> Path:
    """Write the records `SMALL` in the format of the suffix of ``path``; return ``path``."""
    match path.suffix:
        case ".xpt":
            pyreadstat.write_xport(SMALL, path)
        case ".por":
            pyreadstat.write_por(SMALL, path)
        case ".zsav":
            pyreadstat.write_sav(SMALL, path, compress=True)
        case ".ods":
            write_open_document(path)
        case kind:
            path.write_bytes(zlib.decompress(base64.b85decode(ENCODED_FILES[kind])))
    return path


@pytest.mark.usefixtures("in_process_readers")
@pytest.mark.parametrize("form", [".sas7bdat", ".xpt", ".por", ".zsav", ".xls", ".ods"])
def test_foreign_file_formats_have_equal_counts(tmp_path: Path, form: str) -> None:
    without_code = [
        Attribute.categorical("SEX", ["F", "M"], missing="M"),
        Attribute.numeric("AGE", [0, 20, 65, 120]),
    ]
    schema = Schema([*without_code, Attribute.of_size("CODE", 5)])
    sets = [("SEX", "CODE"), ("AGE",)]
    path = write_small(tmp_path / f"x{form}")
    expected = count_marginals(SMALL, schema, sets, on_refused="drop")
    counts = count_marginals(path, schema, sets, on_refused="drop")
    assert all((counts[names] == table).all() for names, table in expected.items())
    assert counts.refused == expected.refused
    assert counts.rows_in == len(SMALL)
    with pytest.raises(DataError, match=r"numeric column 'CODE'"):
        count_marginals(path, Schema(without_code), [("SEX",), ("AGE",)])
    content = path.read_bytes()
    for damaged in (content[: len(content) // 2], b"CANARY7391"):
        path.write_bytes(damaged)
        with pytest.raises(DataError) as caught:
            count_marginals(path, schema, sets, on_refused="drop")
        assert "7391" not in str(caught.value)
        assert caught.value.__context__ is None

"""Tables, tars, columnar files and folders as people have them."""

from __future__ import annotations

import datetime
import decimal
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from streamshard import LocalDataset
from streamshard.convert.job import convert
from streamshard.convert.options import ConvertOptions
from streamshard.errors import ConvertError


def drawn(kind: str = "JPEG") -> bytes:
    target = io.BytesIO()
    Image.new("RGB", (8, 8)).save(target, kind)
    return target.getvalue()


JPEG, PNG = drawn(), drawn("PNG")


def converted(folder: Path, content: bytes, name: str, **options: Any):
    (folder / name).write_bytes(content)
    return convert(ConvertOptions((str(folder / name),), str(folder / "out"), workers=1, **options))


def rows(folder: Path) -> list[dict[str, Any]]:
    return list(LocalDataset(folder / "out", decode_images=False))


TABLE = "id,t\n1,é\n2,b\n"
TABLES = {
    "commas": TABLE,
    "mark": "\ufeff" + TABLE,
    "crlf": TABLE.replace("\n", "\r\n"),
    "cr": TABLE.replace("\n", "\r"),
    "no-end": TABLE.rstrip("\n"),
    "blank-lines": TABLE.replace("\n", "\n\n"),
    "semicolons": TABLE.replace(",", ";"),
    "tabs": TABLE.replace(",", "\t"),
    "bars": TABLE.replace(",", "|"),
    "comma-in-quotes": '"id"|"t"\n1|é\n2|"b"\n',
    "declared": "sep=;\n" + TABLE.replace(",", ";"),
    "declared-mark-quotes": '\ufeff"sep=|"\r\n' + TABLE.replace(",", "|"),
    "quoted": '"id","t"\n"1","é"\n"2","b"\n',
    "empty-column-at-the-end": "id,t,\n1,é,\n2,b,\n",
}


@pytest.mark.parametrize("name", list(TABLES))
def test_one_table_in_many_clothes(tmp_path, name):
    converted(tmp_path, TABLES[name].encode(), "in.csv")
    assert rows(tmp_path) == [{"id": "1", "t": "é"}, {"id": "2", "t": "b"}]


def test_the_row_numbers_of_pandas_have_a_name(tmp_path):
    converted(tmp_path, b",t\n0,a\n1,b\n", "in.csv")
    assert rows(tmp_path) == [{"index": "0", "t": "a"}, {"index": "1", "t": "b"}]


def test_values_keep_separators_quotes_and_line_ends(tmp_path):
    converted(tmp_path, b'a,b\n"x,""y""","1\n2"\n', "in.csv")
    assert rows(tmp_path) == [{"a": 'x,"y"', "b": "1\n2"}]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("id,t\n1\n", r"in\.csv: row 1: 1 values under a header of 2 names \(line 2 of"),
        ("id,t\n1,2,3\n", r"row 1: 3 values under a header of 2 names"),
        ("sep=,\nid,t\n1\n", r"row 1: 1 values .*\(line 3 of the file\)"),
        ("id,\n1,x\n", "row 1: a value in a column without a name"),
        ("id,,t\n1,2,3\n", "column 2 of the header has no name"),
        (",,t\n1,2,3\n", "column 2 of the header has no name"),
        ("id,id\n1,2\n", "names column 'id' twice"),
        (",index\n1,2\n", "column 1 of the header has no name"),
        ('id,t\n1,"open\n', "in.csv.*line 2: .* one is never closed"),
        (
            "a,https://x/1.jpg\nb,https://x/2.jpg\n",
            "the first line has 'https://x/1.jpg', and must name the columns",
        ),
        ('id,t\n1,"a \\"b\\" c"\n', "line 2: .* a quote inside a quoted value is written twice"),
        ("id,t\n", "no records in in.csv"),
    ],
)
def test_a_table_that_does_not_fit_is_named_with_its_line(tmp_path, text, message):
    with pytest.raises(ConvertError, match=message):
        converted(tmp_path, text.encode(), "in.csv")


def test_a_table_in_another_encoding_is_refused_or_read_where_it_says_so(tmp_path):
    for encoding, message in (
        ("latin-1", r"in\.csv.*: line 2: byte 0xe9 is not UTF-8: .*; convert it to UTF-8 \(iconv"),
        ("utf-16-le", "convert it to UTF-8"),
    ):
        with pytest.raises(ConvertError, match=message):
            converted(tmp_path, TABLE.encode(encoding), "in.csv")
    for mark, encoding in (
        (b"\xff\xfe\0\0", "utf-32-le"),
        (b"\xff\xfe", "utf-16-le"),
        (b"\xfe\xff", "utf-16-be"),
    ):
        text = TABLE.replace(",", ";").encode(encoding)
        converted(tmp_path, mark + text, "in.csv", overwrite=True)
        assert rows(tmp_path) == [{"id": "1", "t": "é"}, {"id": "2", "t": "b"}]
    with pytest.raises(ConvertError, match=r"byte 0x\w\w is not UTF-16"):
        converted(tmp_path, mark + text[:-1], "in.csv", overwrite=True)


def test_a_far_byte_of_another_encoding_has_its_line(tmp_path):
    text = b"id,t\n" + b"1,%s\n" % (b"b" * 600) * 3000 + "2,é\n".encode("latin-1")
    with pytest.raises(ConvertError, match="line 3002: byte 0xe9"):
        converted(tmp_path, text, "in.csv")


def test_an_empty_cell_is_null_where_it_can_be(tmp_path):
    content = b"id,n\n1,\n2,0.5\n"
    with pytest.raises(ConvertError, match="--column n=json stores null for an empty value"):
        converted(tmp_path, content, "in.csv", columns=(("n", "float32"),))
    converted(tmp_path, content, "in.csv", columns=(("n", "json"),))
    assert [row["n"] for row in rows(tmp_path)] == [None, 0.5]


def tar(members: list[tuple[str, bytes]], kind: int = tarfile.USTAR_FORMAT) -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w", format=kind) as file:
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            file.addfile(member, io.BytesIO(content))
    return target.getvalue()


PAIR = [("0.jpg", JPEG), ("0.txt", b"a")]
TARS = {
    "plain": PAIR,
    "here": [(f"./{name}", content) for name, content in PAIR],
    "capitals": [("0.JPG", JPEG), ("0.Txt", b"a")],
    "hidden": [("._0.jpg", b"x"), *PAIR, (".DS_Store", b"x")],
    "no-ending": [("README", b"x"), *PAIR],
    "meta": [("__index__.json", b"{}"), *PAIR],
}


@pytest.mark.parametrize("name", list(TARS))
@pytest.mark.parametrize("kind", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_one_sample_in_many_tars(tmp_path, name, kind):
    converted(tmp_path, tar(TARS[name], kind), "in.tar")
    assert rows(tmp_path) == [{"__key__": "0", "jpg": JPEG, "txt": "a"}]


@pytest.mark.parametrize("bad", [b"", b"<html>404", JPEG[:300]], ids=["empty", "html", "half"])
@pytest.mark.parametrize("alone", [True, False])
def test_what_a_tar_calls_a_picture_and_is_none_is_a_bad_record(tmp_path, bad, alone):
    good = [("0.jpg", JPEG), ("0.txt", b"a")]
    members = [*(() if alone else good), ("1.jpg", bad), ("1.txt", b"b")]
    with pytest.raises(ConvertError, match=rf"in\.tar: sample {1 if alone else 2}: image '?in the record"):
        converted(tmp_path, tar(members), "in.tar")
    if not alone:
        assert converted(tmp_path, tar(members), "in.tar", on_error="skip").samples == 1


@pytest.mark.parametrize(
    "name", ["a.jsonl", "x/a.v2.parquet", "a.tar", "d/train.jsonl.gz", "a.csv.zst", "t.tar.gz"]
)
def test_a_tar_of_files_that_hold_records_is_refused(tmp_path, name):
    with pytest.raises(
        ConvertError, match=rf"in\.tar': a tar of files of records .*{name}.*tar -xf in\.tar -C"
    ):
        converted(tmp_path, tar([(name, b"x"), (f"y{name}", b"y")]), "in.tar")
    with pytest.raises(ConvertError, match=rf"a tar with a file of records .*{name}.* beside other files"):
        converted(tmp_path, tar([("1.jpg", JPEG), (name, b"x"), ("b.bin", b"x"), ("b.txt", b"z")]), "in.tar")
    # Samples of several files may have such ones, and one may lack the others.
    ending = name.rpartition("/")[2].partition(".")[2]
    converted(tmp_path, tar([(name, b"x"), (f"b.{ending}", b"y"), ("b.txt", b"z")]), "in.tar")


def test_a_single_object_in_a_tar_of_images_describes_them(tmp_path):
    images = [("i/1.jpg", JPEG), ("i/2.jpg", JPEG)]
    with pytest.raises(
        ConvertError, match=r"with a file of records \('annotations\.json'\) beside other files"
    ):
        converted(tmp_path, tar([*images, ("annotations.json", b"{}")]), "in.tar")
    assert converted(tmp_path, tar([("1.json", b"{}")]), "in.tar").samples == 1
    for more in ([("i/2.json", b"{}"), ("j.json", b"{}")], [("j.json", b"{}"), ("k.json", b"{}")]):
        assert converted(tmp_path, tar([*images, *more]), "in.tar", overwrite=True).samples >= 3


def test_a_tar_whose_members_are_not_sorted_is_told(tmp_path):
    members = [("0.jpg", JPEG), ("1.jpg", JPEG), ("0.txt", b"a"), ("1.txt", b"b")]
    summary = converted(tmp_path, tar(members), "in.tar")
    assert any("tar --sort=name" in warning for warning in summary.warnings)


def test_other_members_stay_bytes(tmp_path):
    array = io.BytesIO()
    np.save(array, np.arange(6))
    members = [
        ("0.npy", array.getvalue()),
        ("0.mp4", b"\0\0\0\x18ftyp"),
        ("0.pkl", b"\x80\x04."),
        ("0.cls", b"3\n"),
    ]
    summary = converted(tmp_path, tar(members), "in.tar")
    assert dict(summary.columns) == {
        "__key__": "str", "cls": "int", "mp4": "bytes", "npy": "bytes", "pkl": "bytes",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"bytes": b"", "path": "x"}, "empty file"),
        ({"bytes": b"<html>", "path": "x"}, "not a readable image"),
        ({"bytes": JPEG[:300], "path": None}, "cannot be decoded"),
        ({"bytes": None, "path": "gone.jpg"}, "does not exist"),
    ],
)
def test_a_bad_picture_in_a_columnar_file_is_named_with_its_row(tmp_path, value, message):
    pa = pytest.importorskip("pyarrow")
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    table = pa.table({"image": pa.array([{"bytes": JPEG, "path": "a.jpg"}, value], kind)})
    import pyarrow.parquet as pq

    target = io.BytesIO()
    pq.write_table(table, target)
    with pytest.raises(ConvertError, match=rf"in\.parquet: row 2: .*{message}"):
        converted(tmp_path, target.getvalue(), "in.parquet")


def test_columns_of_other_types_keep_their_meaning(tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    columns = {
        "map": pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64())),
        "maps": pa.array([[[("k", {"t": datetime.date(2024, 1, 2)})]]],
                         pa.list_(pa.map_(pa.string(), pa.struct([("t", pa.date32())])))),
        "span": pa.array([datetime.timedelta(1)]),
        "spans": pa.array([{"s": datetime.timedelta(1)}]),
        "word": pa.array(["a"], pa.large_string()).dictionary_encode(),
        "view": pa.array(["b"], pa.string_view() if hasattr(pa, "string_view") else pa.string()),
        "price": pa.array([decimal.Decimal("1.50")]),
        "time": pa.array([datetime.datetime(2024, 1, 2, 3)], pa.timestamp("ms", "UTC")),
        "big": pa.array([2**63], pa.uint64()),
        "none": pa.nulls(1),
        "code": pa.array([b"01"], pa.binary(2)),
    }  # fmt: skip
    pq.write_table(pa.table(columns), tmp_path / "in.parquet")
    convert(ConvertOptions((str(tmp_path / "in.parquet"),), str(tmp_path / "out"), workers=1))
    assert rows(tmp_path) == [
        {
            "map": {"k": 1}, "maps": [{"k": {"t": "2024-01-02"}}], "span": "86400000000 us",
            "spans": {"s": "1 day, 0:00:00"}, "word": "a", "view": "b", "price": "1.50",
            "time": "2024-01-02 03:00:00.000Z", "big": 2**63, "none": None, "code": b"01",
        }
    ]  # fmt: skip


def test_a_nested_time_that_python_cannot_hold_is_text(tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    table = pa.table({"s": pa.StructArray.from_arrays([pa.array([1], pa.timestamp("ns"))], ["t"])})
    target = io.BytesIO()
    pq.write_table(table, target)
    converted(tmp_path, target.getvalue(), "in.parquet")
    assert rows(tmp_path) == [{"s": {"t": "1970-01-01T00:00:00.000000001"}}]


def folder(root: Path, files: dict[str, bytes], **options: Any):
    for name, content in files.items():
        (root / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (root / "in" / name).write_bytes(content)
    return convert(ConvertOptions((str(root / "in"),), str(root / "out"), workers=1, **options))


def test_files_of_a_folder_of_images_that_are_in_no_record_are_pointed_out(tmp_path):
    files = {f"images/{n}.jpg": JPEG for n in range(4)} | {f"labels/{n}.txt": b"0 1" for n in range(4)}
    summary = folder(
        tmp_path, {**files, "images/4.JXL": b"", "images/5.svg": b"", "README.md": b"", "a.yaml": b""}
    )
    assert list(summary.warnings) == [
        "pictures of kinds that are not read (.jxl, .svg) are left out: convert them to JPEG or PNG",
        "4 files .txt lie in a folder of images and are left out: a text or JSON object beside each image, of the same"
        " name, is taken, and metadata.jsonl may hold anything",
    ]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("in.csv", b'{"a": 1, "b": "x"}\n', "the first line is a JSON object, .*say --from jsonl"),
        ("in.parquet", b'{"a": 1}\n', "not a sound Parquet file: .*begins as JSON does: say --from jsonl"),
        ("in.parquet", b"x", "not a sound Parquet file: .*fetch or make it again"),
        ("in.png", PNG, "a picture, and no records: name the folder that holds the pictures"),
        ("in.jpg", JPEG, "a picture, and no records"),
        ("in.pdf", b"%PDF-1.7", "a PDF document"),
        (
            "in.tfrecord-00000-of-00010",
            b"\x10\0",
            "in.tfrecord-00000-of-00010 is TFRecord: give its records to",
        ),
        ("in.MAT", b"MATLAB 5.0", "in.MAT is MATLAB: give its records to streamshard.convert_records"),
        (
            "in.jsonl",
            b'{"a": 1}\n{"a": ',
            r"in\.jsonl:2: .*a file that was cut, or an object over several lines",
        ),
    ],
)
def test_a_file_that_is_not_what_it_is_called_says_what_to_do(tmp_path, name, content, message):
    with pytest.raises(ConvertError, match=message):
        converted(tmp_path, content, name)


def test_a_folder_of_files_that_are_not_read_says_of_what_kind_they_are(tmp_path):
    with pytest.raises(
        ConvertError, match=r"without files of a known kind .*; data\.mdb is LMDB: give its records to"
    ):
        folder(tmp_path, {"data.mdb": b"x", "lock.mdb": b"x"})
    assert converted(tmp_path, b'{"a": 1}', "in.rec").samples == 1  # what it holds says more


def test_texts_beside_images_are_their_text(tmp_path):
    files = {"1.jpg": JPEG, "1.txt": "ein größerer Hund\r\n".encode(), "2.png": PNG, "notes.txt": b"x"}
    folder(tmp_path, files)
    assert rows(tmp_path) == [
        {"image": JPEG, "image_path": "1.jpg", "text": "ein größerer Hund"},
        {"image": PNG, "image_path": "2.png", "text": None},
    ]


def test_a_changed_text_is_another_dataset(tmp_path):
    files = {"cat/1.jpg": JPEG, "cat/1.txt": b"a"}
    folder(tmp_path, files)
    assert folder(tmp_path, {}).finished_before
    with pytest.raises(ConvertError, match="of other records"):
        folder(tmp_path, {"cat/1.txt": b"b"})


def test_a_text_that_is_no_utf_8_is_named(tmp_path):
    with pytest.raises(ConvertError, match=r"1\.txt: not UTF-8"):
        folder(tmp_path, {"1.jpg": JPEG, "1.txt": b"\xe9"})


def test_captions_and_objects_beside_images_are_theirs(tmp_path):
    files = {"1.jpg": JPEG, "1.caption": b"a", "1.json": b'\xef\xbb\xbf{"tags": ["x"], "n": 1}', "2.png": PNG}
    folder(tmp_path, files)
    assert rows(tmp_path) == [
        {"image": JPEG, "image_path": "1.jpg", "text": "a", "tags": ["x"], "n": 1},
        {"image": PNG, "image_path": "2.png", "text": None, "tags": None, "n": None},
    ]
    assert folder(tmp_path, {}).finished_before
    with pytest.raises(ConvertError, match="of other records"):
        folder(tmp_path, {"1.json": b"{}"})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"image": 1}', "1.json: has a key 'image'"),
        (b"[1]", "1.json: found a list"),
        (b"{", "1.json: broken JSON"),
    ],
)
def test_an_object_beside_an_image_that_does_not_fit_is_named(tmp_path, content, message):
    with pytest.raises(ConvertError, match=message):
        folder(tmp_path, {"1.jpg": JPEG, "1.json": content})


def test_records_of_two_kinds_in_a_folder_are_not_half_of_them(tmp_path):
    files = {"a.csv": b"a\n1\n", "b.jsonl": b'{"a": 1}\n'}
    with pytest.raises(
        ConvertError, match=r"files of several kinds \(1 csv, 1 jsonl\); say which with --from"
    ):
        folder(tmp_path, files)
    folder(tmp_path, {"c.json": b"{}"}, kind="csv")
    assert rows(tmp_path) == [{"a": "1"}]


def test_images_that_no_record_names_are_told(tmp_path):
    files = {"in.jsonl": b'{"image_id": 1}\n', "images/1.jpg": JPEG, "images/2.jpg": JPEG}
    (warning,) = folder(tmp_path, files).warnings
    assert "no record yields an image, and 2 image files lie in the folder" in warning
    assert folder(tmp_path, {}, image_keys=("none",), overwrite=True).warnings == ()
    assert folder(tmp_path, {"in.jsonl": b'{"image": "images/1.jpg"}\n'}, overwrite=True).warnings == ()


def test_values_in_the_names_of_folders_are_told(tmp_path):
    files = {"lang=de/0.jsonl": b'{"t": 1}\n', "lang=en/0.jsonl": b'{"t": 2}\n'}
    (warning,) = folder(tmp_path, files).warnings
    assert "folders such as 'lang=de', which say a value that is in no file" in warning


def test_images_named_inside_an_object_are_told(tmp_path):
    text = json.dumps({"id": 1, "meta": {"view": {"front": "a.jpg"}}}).encode()
    (warning,) = converted(tmp_path, text, "in.jsonl").warnings
    assert "values at .meta.view.front look like images or names of them" in warning


def test_a_table_by_columns_is_told(tmp_path):
    (warning,) = converted(tmp_path, b'{"id": [1, 2], "t": ["a", "b"]}', "in.json").warnings
    assert "in.json is one object and so one sample; each of its keys holds 2 values" in warning
    assert converted(tmp_path, b'{"id": [1, 2], "t": ["a"]}', "in.json", overwrite=True).warnings == ()


@pytest.mark.parametrize(
    ("line", "hint"), [(b"id\tname", "a table\\? say --from tsv"), (b"plain text", "jq -Rc '{text: .}' FILE")]
)
def test_text_that_is_no_json_says_what_it_may_be(tmp_path, line, hint):
    with pytest.raises(ConvertError, match=hint):
        converted(tmp_path, line, "in.txt")


def test_a_folder_without_texts_has_no_such_column(tmp_path):
    summary = folder(
        tmp_path, {"cat/1.JPG": JPEG, "dog/2.jpeg": JPEG, ".DS_Store": b"x", "cat/Thumbs.db": b"x"}
    )
    assert set(summary.columns) == {"class", "image", "image_path", "label"}
    assert summary.samples == 2

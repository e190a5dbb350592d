"""Archives for TorchServe: their own version, and what in them is not honoured."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

from geartrain.project.foreign.torch_archive import facts_of
from geartrain.project.source import ModelSource, find_model

HANDLER = "def handle(data, context):\n    return data\n"
CONFIG = """
minWorkers: 1
maxWorkers: 4
batchSize: 8
maxBatchDelay: 100
responseTimeout: 120
deviceType: gpu
sequenceBatching: false
handler:
  own: 1
"""


def files(config: str = CONFIG, **model: Any) -> dict[str, str]:
    document = {"model": {"modelName": "net", "handler": "h.py", "configFile": "c.yaml", **model}}
    return {"MAR-INF/MANIFEST.json": json.dumps(document), "h.py": HANDLER, "c.yaml": config}


def lay(root: Path, contents: dict[str, str]) -> Path:
    for name, text in contents.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def pack(path: Path, contents: dict[str, str]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in contents.items():
            archive.writestr(name, text)
    return path


def damage(path: Path) -> Path:
    """Spoil the packed bytes of an archive's first file."""
    content = bytearray(path.read_bytes())
    for index in range(80, 100):
        content[index] ^= 0xFF
    path.write_bytes(content)
    return path


def test_an_archive_and_its_folder_tell_the_same(tmp_path: Path) -> None:
    given = files(modelVersion="2.1", envelope="kserve", requirementsFile="requirements.txt")
    version, remarks = facts_of(lay(tmp_path / "net", given))
    assert version == "2.1"
    assert [each.partition("` is passed over: ")[0] for each in remarks] == [
        "MAR-INF/MANIFEST.json: `model.envelope",
        "MAR-INF/MANIFEST.json: `model.requirementsFile",
        "c.yaml: `maxWorkers",
        "c.yaml: `responseTimeout",
        "c.yaml: `deviceType",
    ]
    assert facts_of(pack(tmp_path / "net.mar", given)) == (version, remarks)
    source = find_model(str(tmp_path / "net.mar"), environ={})
    assert isinstance(source, ModelSource)
    assert (source.own_version, source.remarks) == (version, remarks)


def test_without_a_manifest(tmp_path: Path) -> None:
    folder = lay(tmp_path / "net", {"h.py": HANDLER, "model-config.yaml": "jobQueueSize: 7"})
    version, remarks = facts_of(folder / "h.py")
    assert (version, len(remarks), "write `queue`" in remarks[0]) == ("1.0", 1, True)


def test_what_cannot_be_read_is_left_to_the_worker(tmp_path: Path) -> None:
    for number, contents in enumerate(
        ({"MAR-INF/MANIFEST.json": "{"}, {"MAR-INF/MANIFEST.json": '{"model": 7}'}, files(config="a: [")), start=1
    ):
        assert facts_of(lay(tmp_path / str(number), contents)) == ("1.0", ())
    (tmp_path / "cut.mar").write_bytes(b"PK\x03\x04")
    whole = damage(pack(tmp_path / "damaged.mar", files(modelVersion="2.1", note="n" * 5000)))
    assert facts_of(whole) == ("1.0", ())
    outside = lay(tmp_path / "outside", {"c.yaml": "maxWorkers: 4", "net/h.py": HANDLER})
    above = lay(outside / "net", files(configFile="../c.yaml"))
    assert facts_of(above) == ("1.0", ())
    assert facts_of(lay(tmp_path / "rooted", files(configFile=str(outside / "c.yaml")))) == ("1.0", ())
    assert facts_of(tmp_path / "cut.mar") == ("1.0", ())
    large = files(config=f"maxWorkers: 4\n# {'x' * 2_000_000}")
    assert facts_of(lay(tmp_path / "large", large)) == ("1.0", ())
    assert facts_of(pack(tmp_path / "large.mar", large)) == ("1.0", ())

from __future__ import annotations

from geartrain.domain.remote.progress import UNKNOWN_SIZE, Download, DownloadStep, size_text


def test_download_says_how_far_it_has_come() -> None:
    download = Download()
    active = [download.is_active]
    assert download.describe() == "There is no download."
    download.begin("s3://bucket/m")
    active.append(download.is_active)
    assert download.describe() == "Looking at s3://bucket/m."
    download.expect(2_000_000_000, 3)
    download.add(500_000_000)
    download.finish_file(received=True)
    assert download.describe() == "Downloading s3://bucket/m: 500 MB of 2.0 GB (25 %), 1 of 3 files."
    download.step = DownloadStep.UNPACKING
    assert download.describe() == "Unpacking s3://bucket/m."
    download.end()
    assert [*active, download.is_active] == [False, True, False]


def test_size_that_nobody_knows() -> None:
    download = Download()
    download.begin("https://host/m.tar")
    download.expect(UNKNOWN_SIZE, 1)
    download.add(1500)
    assert download.describe() == "Downloading https://host/m.tar: 1,500 bytes."
    assert download.percent == 0


def test_received_counts_go_on_through_downloads() -> None:
    download = Download()
    for _ in range(2):
        download.begin("s3://bucket/m")
        download.expect(10, 2)
        download.add(7)
        download.drop(2)
        download.finish_file(received=True)
        download.finish_file(received=False)
        download.end()
    assert (download.bytes, download.received_bytes, download.received_files) == (5, 14, 2)


def test_empty_download_is_complete() -> None:
    download = Download()
    download.expect(0, 1)
    assert download.percent == 100


def test_sizes_for_a_person() -> None:
    assert [size_text(size) for size in (0, 999_999, 1_500_000, 14_000_000_000)] == [
        "0 bytes",
        "999,999 bytes",
        "1.5 MB",
        "14 GB",
    ]

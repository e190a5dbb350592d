"""`geartrain batch`: a model over the rows of a data set."""

from __future__ import annotations

import pathlib
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

from geartrain.cli import fetching, options
from geartrain.cli.call import Certificates, Insecure, Key, verification
from geartrain.cli.failure import INTERRUPTED, fail
from geartrain.cli.typer_app import CommandApp
from geartrain.project.setting_values import Devices
from geartrain.server.option_table import BY_NAME

if TYPE_CHECKING:
    from geartrain.cli.batch_run import Asked

app = CommandApp(add_completion=False, pretty_exceptions_enable=False)

_DATA: Final = "The data set"
_OUTPUT: Final = "The output"
_RUN: Final = "The run"


@app.command(
    examples=(
        "geartrain batch shout texts.jsonl -o loud.jsonl",
        "geartrain batch embed articles.parquet -o vectors/ --map text=body --keep id",
        "geartrain batch classify photos/ -o classes.jsonl --resume",
        "geartrain batch shout - < texts.jsonl > loud.jsonl",
        "geartrain batch shout texts.jsonl -o loud.jsonl --part 0/4 --resume",
    ),
    daily=(
        "--output",
        "--map",
        "--keep",
        "--resume",
        "--overwrite",
        "--dry-run",
        "--errors",
        "--replicas",
        "--target",
        "--part",
        "--ray",
    ),
)
def batch(
    model: Annotated[
        str,
        typer.Argument(metavar="MODEL", help="A model as of `geartrain run`. With --target, its name at the server."),
    ],
    source: Annotated[
        str,
        typer.Argument(
            metavar="IN",
            help="A file of JSON lines, CSV, Parquet or Arrow; a folder of these, or of files, one a row; - for stdin; "
            "or a file elsewhere, such as s3://bucket/rows.parquet or an https:// URL.",
        ),
    ],
    third: Annotated[
        str | None,
        typer.Argument(metavar="IN", show_default=False, help="With --compare, IN after the models A and B."),
    ] = None,
    *,
    compare: Annotated[
        bool,
        typer.Option(
            "--compare",
            help="Run two models over the rows, A and B in place of MODEL, and say how much they agree.",
        ),
    ] = False,
    metric: Annotated[
        str,
        typer.Option(
            metavar="exact|close|module:function",
            help="The agreement of two outputs: 1 where they are the same, or within --tolerance; or a function of "
            "yours, which gets both.",
        ),
    ] = "exact",
    tolerance: Annotated[float, typer.Option(metavar="SHARE", help="How far numbers may differ for close.")] = 1e-6,
    output: Annotated[
        str,
        typer.Option(
            "--output",
            "-o",
            metavar="OUT",
            help="FILE.jsonl, or a folder for parts of Parquet. By default JSON lines on stdout.",
            rich_help_panel=_OUTPUT,
        ),
    ] = "-",
    mapped: Annotated[
        list[str] | None,
        typer.Option(
            "--map",
            metavar="INPUT=COLUMN,…",
            help="The columns of inputs that have another name.",
            rich_help_panel=_DATA,
        ),
    ] = None,
    keep: Annotated[
        list[str] | None,
        typer.Option(
            "--keep",
            metavar="COLUMN,…",
            help="Columns that pass through to the output; NEW=COLUMN gives one another name.",
            rich_help_panel=_DATA,
        ),
    ] = None,
    form: Annotated[
        Literal["jsonl", "csv", "tsv", "parquet", "arrow", "files"] | None,
        typer.Option(
            "--format",
            metavar="FORMAT",
            help="The format of IN, where its name does not tell: jsonl, csv, tsv, parquet, arrow, or files: each a "
            "row.",
            rich_help_panel=_DATA,
        ),
    ] = None,
    part: Annotated[
        str | None,
        typer.Option(
            "--part",
            metavar="I/N",
            show_default=False,
            help="Run one of N shares of the rows, I from 0 on, for N processes on as many machines; each has files of "
            "its own in OUT. auto/N takes I from JOB_COMPLETION_INDEX.",
            rich_help_panel=_DATA,
        ),
    ] = None,
    errors: Annotated[
        Literal["column", "skip", "fail"],
        typer.Option(
            help="A row that fails: an `error` in its line of the output, no line at all, or the end of the run.",
            rich_help_panel=_OUTPUT,
        ),
    ] = "column",
    max_errors: Annotated[
        int | None,
        typer.Option(
            "--max-errors",
            min=0,
            metavar="N",
            show_default=False,
            help="End when more rows than that have failed.",
            rich_help_panel=_OUTPUT,
        ),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Go on where a run was cut off, whatever ended it.", rich_help_panel=_OUTPUT),
    ] = False,
    resume_changed: Annotated[
        bool,
        typer.Option(
            "--resume-changed",
            help="Go on although the data set, the model or the options have changed.",
            rich_help_panel=_OUTPUT,
        ),
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an output that is there.", rich_help_panel=_OUTPUT)
    ] = False,
    part_rows: Annotated[
        int | None,
        typer.Option(
            "--part-rows",
            min=1,
            metavar="N",
            help="Rows of a part of Parquet; 10,000 by default. With --ray those that one actor has at a time; 1,024.",
            show_default=False,
            rich_help_panel=_OUTPUT,
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Run ten rows, print what they give, and write nothing.")
    ] = False,
    report: Annotated[
        pathlib.Path | None,
        typer.Option("--report", metavar="FILE", help="Write the summary as a page.", rich_help_panel=_OUTPUT),
    ] = None,
    replicas: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Workers of the model.", show_default=False, rich_help_panel=_RUN),
    ] = None,
    devices: Annotated[Devices | None, options.declared(BY_NAME["devices"])] = None,
    window: Annotated[
        int,
        typer.Option(
            min=0,
            metavar="N",
            show_default=False,
            help="Rows on their way at once; by default four times what the workers run at once, 512 to 4096 where "
            "they are sorted by cost, or 64 at a server.",
            rich_help_panel=_RUN,
        ),
    ] = 0,
    target: Annotated[
        str | None,
        typer.Option(
            "--target",
            metavar="URL",
            help="Send the rows to this server, in place of workers here.",
            rich_help_panel=_RUN,
        ),
    ] = None,
    ray: Annotated[
        bool,
        typer.Option(
            "--ray",
            help="Run it on Ray Data, on the cluster of RAY_ADDRESS or on this machine; --replicas is the number of "
            "actors. OUT is a folder.",
            rich_help_panel=_RUN,
        ),
    ] = False,
    gpus: Annotated[
        float,
        typer.Option(min=0.0, metavar="N", help="With --ray, the GPUs of each actor.", rich_help_panel=_RUN),
    ] = 0.0,
    run_timeout: Annotated[float, options.declared(BY_NAME["run_timeout"])] = 0.0,
    setup_timeout: options.SetupTimeout = None,
    no_pickle: options.NoPickle = False,
    key: Key = None,
    cacert: Certificates = None,
    insecure: Insecure = False,
    cache_dir: options.CacheDir = None,
    verify_cache: options.VerifyCache = False,
    log_level: Annotated[
        str | None, typer.Option(metavar="LEVEL", help="debug, info, warning or error. COG_LOG_LEVEL says the same.")
    ] = None,
) -> None:
    """Run MODEL over each row of IN, and write what it gives.

    Columns become inputs by their names. Every row is checked by the model's signature; batches, limits and restarts
    are those of a server, without one in between.

    Exit code: 0 when every row is done, rows with an error included; 1 when the run has ended before; 130 when Ctrl-C
    ended it, after the rows that ran.
    """
    from geartrain.cli.batch_run import Asked, run  # asyncio and the worker's side

    other = None
    if compare:
        if third is None:
            fail("--compare takes two models: geartrain batch A B IN --compare")
        other, source = source, third
    elif third is not None:
        fail(f"{third!r} is one argument too many; to compare two models write --compare")
    if resume and overwrite:
        fail("--resume goes on with the output, and --overwrite replaces it; leave one of them out")
    asked: Asked = Asked(
        model=model,
        other=other,
        metric=metric,
        tolerance=tolerance,
        source=source,
        output=output,
        mapped=mapped or (),
        keep=keep or (),
        form=form,
        part=part,
        errors=errors,
        max_errors=0 if errors == "fail" else max_errors,
        resume=resume,
        resume_changed=resume_changed,
        overwrite=overwrite,
        part_rows=part_rows,
        dry_run=dry_run,
        report=report,
        replicas=replicas,
        devices=devices,
        window=window,
        target=target,
        run_timeout=run_timeout or None,
        setup_timeout=setup_timeout,
        no_pickle=no_pickle,
        key=key,
        verify=verification(cacert, insecure=insecure),
        local=fetching.LocalModels(cache_dir, verify=verify_cache),
        log_level=log_level,
    )
    if gpus and not ray:
        fail("--gpus is for --ray; without it the model takes its GPUs by --devices")
    if ray:
        from geartrain.cli.batch_ray import run as run_on_ray

        raise typer.Exit(run_on_ray(asked, gpus))
    try:
        code = run(asked)
    except KeyboardInterrupt:
        code = INTERRUPTED
    raise typer.Exit(code)

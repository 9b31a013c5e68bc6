# ruff: noqa: PLC0415
"""`turngym sandbox check | image`: what this machine's sandboxes are worth, and images to make them of.

Like the rest of the command line, each command imports what it needs when it runs.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from turngym.sandbox.selfcheck import Finding, Report

sandbox_app = typer.Typer(no_args_is_help=True, help="Isolated machines for agents.")
image_app = typer.Typer(no_args_is_help=True, help="Images for the docker backend.")
sandbox_app.add_typer(image_app, name="image")


@sandbox_app.command("check")
def check(
    backend: Annotated[
        str, typer.Argument(help="A backend by name; best is what environments take.")
    ] = "best",
    as_json: Annotated[bool, typer.Option("--json", help="The report as JSON on standard output.")] = False,
) -> None:
    """Hold a sandbox backend to the contract, and attack it; exit code 1 where something gives way."""
    import asyncio

    from turngym.sandbox import backend as find_backend
    from turngym.sandbox.selfcheck import check as check_backend

    def show(finding: Finding) -> None:
        typer.echo(_line(finding), err=as_json)

    report = asyncio.run(check_backend(find_backend(backend), progress=show))
    if as_json:
        typer.echo(json.dumps(report.to_dict(), indent=1))
    else:
        typer.echo(_sum(report))
    if not report.ok:
        raise typer.Exit(1)


@image_app.command("build")
def build(
    kind: Annotated[
        str,
        typer.Option(help="busybox: of what this machine has, in seconds. debian: by debootstrap, as root."),
    ] = "busybox",
    name: Annotated[
        str, typer.Option(help="What the engine calls it; the default is what the docker backend takes.")
    ] = "turngym-sandbox:latest",
    tar: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the image there and ask no engine to import it."),
    ] = None,
) -> None:
    """Make an image for sandboxes on a machine that has no registry."""
    import tempfile

    from turngym.errors import unknown_name
    from turngym.sandbox import engine, image

    if kind not in image.KINDS:
        raise unknown_name("kind of image", kind, image.KINDS)
    if tar is not None:
        image.build(kind, tar)
        typer.echo(
            f"{tar}: {tar.stat().st_size / 1e6:.0f} MB; `docker import {tar} {name}` on the engine's machine"
        )
        return
    engine.client()  # before the work, not after it
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder, "image.tar")
        image.build(kind, made)
        engine.import_image(made, name)
        typer.echo(f"{name}: {made.stat().st_size / 1e6:.0f} MB")


def _line(finding: Finding) -> str:
    verdict = typer.style("ok  ", fg="green") if finding.ok else typer.style("FAIL", fg="red", bold=True)
    return f"{verdict}  {finding.name:<52} {finding.seconds:6.2f} s  {' '.join(finding.words.split())}"


def _sum(report: Report) -> str:
    passed = sum(each.ok for each in report.conformance)
    return (
        f"{report.backend} as user {report.user}: {passed} of {len(report.conformance)} checks passed, "
        f"{report.succeeded} of {len(report.attacks)} attacks succeeded"
    )

"""An image is a tar of this machine's own programs; what can't be made is an error that says what to install."""

from __future__ import annotations

import shutil
import tarfile

import pytest

from missing import skip_or_fail
from turngym.cli import main
from turngym.errors import MissingDependency
from turngym.sandbox import image


@pytest.fixture
def busybox() -> None:
    if shutil.which("busybox") is None:
        skip_or_fail("busybox is not installed: apt-get install busybox-static")


def test_an_image_has_a_shell_a_python_and_nobody_elses_files(busybox, tmp_path, capsys):
    target = tmp_path / "image.tar"
    with pytest.raises(SystemExit) as ended:
        main(["sandbox", "image", "build", "--tar", str(target)])
    assert not ended.value.code
    assert "docker import" in capsys.readouterr().out
    with tarfile.open(target) as tar:
        members = {member.name: member for member in tar}
    assert {"usr/bin/busybox", "usr/bin/bash", "usr/bin/cp", "usr/local/bin/python3", "etc/passwd"} <= set(
        members
    )
    assert any(name.endswith("/json/decoder.py") for name in members)
    assert not any("site-packages" in name or "/test/" in name for name in members)
    assert {(member.uid, member.gid) for member in members.values()} == {(0, 0)}
    assert not any(member.mode & 0o6000 for member in members.values())


def test_an_unknown_kind_of_image_names_the_nearest(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["sandbox", "image", "build", "--kind", "busybix"])
    assert ended.value.code == 2
    assert "Did you mean 'busybox'?" in capsys.readouterr().err


def test_a_missing_program_is_an_error_with_the_command_that_installs_it(monkeypatch, tmp_path):
    monkeypatch.setattr(image.shutil, "which", lambda _: None)
    with pytest.raises(MissingDependency, match="apt-get install busybox-static"):
        image.build("busybox", tmp_path / "image.tar")
    with pytest.raises(MissingDependency, match="apt-get install debootstrap"):
        image.build("debian", tmp_path / "image.tar")

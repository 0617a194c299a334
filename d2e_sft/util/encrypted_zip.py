"""Zip archives with a password, for benchmark data that must stay out of training corpora.

The authors of Boxes ask not to store their files uncompressed. The password keeps out crawlers and is no secret.
"""

import io
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType

from d2e_sft.util.errors import UserError
from d2e_sft.util.files import most_unpacked, replacing

PASSWORD = "iamnotaLM"  # as in the published archive of Boxes


def write_encrypted(path: Path, members: Mapping[str, Iterable[str]], password: str = PASSWORD) -> None:
    """Write an AES-256 archive atomically; `members` are names → lines of text."""
    zipper = _pyzipper(path)
    with (
        replacing(path) as partial,
        zipper.AESZipFile(partial, "w", compression=zipper.ZIP_DEFLATED, encryption=zipper.WZ_AES) as archive,
    ):
        archive.setpassword(password.encode())
        for name, lines in members.items():
            with archive.open(name, "w", force_zip64=True) as member:
                text = io.TextIOWrapper(member, encoding="utf-8", newline="\n")
                text.writelines(f"{line}\n" for line in lines)
                text.flush()
                text.detach()


def member_names(path: Path) -> list[str]:
    """List the files in an archive; UserError if it is no zip archive."""
    zipper = _pyzipper(path)
    try:
        with zipper.AESZipFile(path) as archive:
            return [name for name in archive.namelist() if not name.endswith("/")]
    except zipper.BadZipFile as error:
        raise UserError(f"{path}: not a zip archive ({error})") from None


def read_encrypted(path: Path, member: str, password: str = PASSWORD) -> str:
    """Read a member encrypted with AES or ZipCrypto; UserError without archive or member, or for a wrong password."""
    zipper = _pyzipper(path)
    try:
        with zipper.AESZipFile(path) as archive:
            size, most = archive.getinfo(member).file_size, most_unpacked(path)
            if size > most:
                raise UserError(f"{path}: {member} unpacks to {size:,} bytes; expected at most {most:,}")
            return archive.read(member, pwd=password.encode()).decode("utf-8")
    except (zipper.BadZipFile, KeyError, RuntimeError) as error:
        raise UserError(f"{path}: {member} cannot be read ({error})", "check the archive and its password") from None


def _pyzipper(path: Path) -> ModuleType:
    try:
        import pyzipper
    except ImportError as error:
        raise UserError(
            f"{path}: archives with a password need the package pyzipper ({error})",
            remedy="pip install 'd2e-sft[boxes]'",
        ) from None
    return pyzipper

"""The Hub behind a small interface, with one kind of error; a repeated push uploads only files that are missing."""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Literal

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, get_token, snapshot_download
from huggingface_hub.errors import (
    HfHubHTTPError,
    HFValidationError,
    HTTPError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
)
from huggingface_hub.utils import validate_repo_id

from d2e_sft.config.recipe import RECIPE_FILE
from d2e_sft.util.errors import UserError
from d2e_sft.util.files import put_folder

EXPORT_FILE = "d2e_export.json"
_MODEL_FILES = ("config.json", "adapter_config.json")
_TOKENS = "https://huggingface.co/settings/tokens"
_WRITE_ERRORS = {
    401: ("the token is not valid", f"get one that may write: {_TOKENS}"),
    403: ("the token may not write there", "use a token with write access to that account, or another name"),
    404: ("there is no such account or repository", "check the name; it is OWNER/NAME"),
}
_READ_ERRORS = {
    401: ("there is no such repository, or it is private", "check the name; log in with `hf auth login`"),
    403: ("the token may not read it", "ask for access on its page, or use a token that may read it"),
    404: ("there is no such repository or revision", "check the name, OWNER/NAME, and --revision"),
}


def check_name(name: str) -> None:
    """Raise UserError unless the name is `OWNER/NAME` or `NAME`; the Hub is not asked."""
    try:
        validate_repo_id(name)
    except HFValidationError:
        raise UserError(
            f"{name!r}: not the name of a repository; expected OWNER/NAME",
            "letters, digits, '-', '_' and '.', with one '/' in between",
        ) from None


def writing_api() -> HfApi:
    """Return the Hub's interface for a token that may write; raise UserError without a token."""
    token = get_token()
    if token is None:
        raise UserError(
            "no token for the Hub; expected one that may write",
            remedy=f"set HF_TOKEN, or log in with `hf auth login`; tokens: {_TOKENS}",
        )
    return HfApi(token=token)


def full_name(api: HfApi, name: str) -> str:
    """Return `OWNER/NAME`; without an owner it is the token's account."""
    with hub_errors(name, api.endpoint):
        return name if "/" in name else f"{api.whoami()['name']}/{name}"


def commit(
    api: HfApi,
    name: str,
    kind: Literal["model", "dataset"],
    files: Mapping[str, Path | bytes],
    message: str,
    *,
    private: bool,
    revision: str | None = None,
    replaced: Sequence[str] = (),
) -> tuple[str, bool]:
    """Put files (by their path there) into a repository, created if missing; return its address and if it is private.

    Files that match `replaced` are deleted unless they are pushed again. A missing `revision` is created. Raises
    UserError if the Hub refuses or cannot be reached; the repository is unchanged.
    """
    repo = full_name(api, name)
    place: dict[str, Any] = {"repo_type": kind, "revision": revision}
    with hub_errors(name, api.endpoint):
        url = api.create_repo(repo, repo_type=kind, private=private, exist_ok=True)
        is_private = bool(api.repo_info(repo, repo_type=kind).private)
        if private and not is_private:
            raise UserError(
                f"{repo}: is a public repository; expected a private one",
                remedy="make it private in its settings on the Hub, push to another name, or add --public",
            )
        if revision is not None:
            api.create_branch(repo, branch=revision, repo_type=kind, exist_ok=True)
        existing: list[str] = api.list_repo_files(repo, **place) if replaced else []
        stale = {path for path in existing for pattern in replaced if fnmatch(path, pattern)} - files.keys()
        operations: list[Any] = [CommitOperationAdd(path, content) for path, content in files.items()]
        operations += map(CommitOperationDelete, sorted(stale))
        api.create_commit(repo, operations, commit_message=message, **place)
    return str(url), is_private


def download(name: str, out: Path, *, revision: str | None = None, overwrite: bool = False) -> list[str]:
    """Download a model repository as the folder `out`, which appears when it is complete, and return its files.

    Partial downloads are kept in `OUT.partial`; the next call resumes them. `overwrite` replaces a model in `out`,
    unless it is a run. Raises UserError if the Hub refuses or cannot be reached, or `out` is not empty.
    """
    check_name(name)
    check_new_folder(out, overwrite=overwrite, or_with=_MODEL_FILES)
    partial = out.with_name(out.name + ".partial")
    api = HfApi(token=get_token())
    with hub_errors(name, api.endpoint, reading=True, kept=partial):
        info = api.model_info(name, revision=revision)
        # By commit, so a download resumed tomorrow does not mix two versions.
        snapshot_download(name, revision=info.sha, local_dir=partial, token=api.token, endpoint=api.endpoint)
    files = sorted(sibling.rfilename for sibling in info.siblings or ())
    if missing := [file for file in files if not (partial / file).is_file()]:
        raise UserError(f"{name}: {', '.join(missing)} did not arrive", f"run it again; {partial} is kept")
    expected = {partial / file for file in files}
    for path in list(partial.rglob("*")):
        if path.is_file() and path not in expected and ".cache" not in path.relative_to(partial).parts:
            path.unlink()  # of another revision, downloaded before
    shutil.rmtree(partial / ".cache", ignore_errors=True)
    out.parent.mkdir(parents=True, exist_ok=True)
    put_folder(partial, out, overwrite=overwrite)
    return files


def check_new_folder(out: Path, *, overwrite: bool, or_with: Sequence[str] = ()) -> None:
    """Raise UserError if `out` exists and is not an empty folder, unless `overwrite` may replace it.

    It may replace an export, and a folder with one of the files `or_with` that is no run.
    """
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    if not overwrite:
        raise UserError(f"{out}: already exists; expected a new folder", "choose another one, or add --overwrite")
    is_other_model = any((out / name).is_file() for name in or_with) and not (out / RECIPE_FILE).exists()
    if out.is_symlink() or not ((out / EXPORT_FILE).is_file() or is_other_model):
        kind = "downloaded model" if or_with else "export"
        raise UserError(f"{out}: is no {kind}, so --overwrite would not replace it", "choose another folder")


def check_no_link(path: Path, folder: Path) -> None:
    """Raise UserError if a symbolic link leads from the file out of the folder: a push would publish its target."""
    target = path.resolve()
    if not target.is_relative_to(folder.resolve()):
        raise UserError(
            f"{path}: a link or path that leads out of {folder} to {target}; expected a file in the folder",
            remedy=f"remove it; or, if {target} belongs to the push, copy it there",
        )


@contextmanager
def hub_errors(name: str, endpoint: str, *, reading: bool = False, kept: Path | None = None) -> Iterator[None]:
    """Turn errors of the Hub, its client and the network into one message about `name`."""
    again = "the same command resumes" + (f" ({kept} keeps what has arrived)" if kept else "")
    try:
        yield
    except (HTTPError, OfflineModeIsEnabled, LocalEntryNotFoundError, RuntimeError) as error:
        cause: BaseException = error
        # The client wraps the Hub's answer if a file cannot be sent or fetched.
        while isinstance(cause, RuntimeError | LocalEntryNotFoundError) and cause.__cause__ is not None:
            cause = cause.__cause__
        problem, remedy = (
            f"the Hub at {endpoint} cannot be reached ({cause})",
            f"check the network and HF_ENDPOINT; {again}",
        )
        if isinstance(cause, HfHubHTTPError):
            status = cause.response.status_code
            reason = "server error" if status >= 500 else (cause.server_message or "no reason given")
            reason, remedy = (_READ_ERRORS if reading else _WRITE_ERRORS).get(status, (reason, again))
            problem = f"the Hub at {endpoint} answered {status}: {reason}"
        elif isinstance(cause, OfflineModeIsEnabled):
            problem, remedy = "HF_HUB_OFFLINE is set, so the Hub is not used", "unset HF_HUB_OFFLINE"
        raise UserError(f"{name}: {problem}", remedy) from error

"""The Hub behind one small interface: a repository, one commit, one download, and each failure as one message.

A push is one commit, so a reader of the repository sees all of it or nothing. Large files go up before the commit and
are known to the Hub by their checksum: a push that broke off goes on with the same command and sends what is missing.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from typing import Literal

from huggingface_hub import (
    CommitOperationAdd,
    CommitOperationDelete,
    HfApi,
    get_token,
    snapshot_download,
)
from huggingface_hub.errors import (
    HfHubHTTPError,
    HFValidationError,
    HTTPError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
)
from huggingface_hub.utils import validate_repo_id

from d2e_sft.util.errors import UserError

RepoType = Literal["model", "dataset"]
_TOKENS = "https://huggingface.co/settings/tokens"
_REFUSALS = {
    401: ("the token is not valid", f"get one that may write: {_TOKENS}"),
    403: ("the token may not write there", "use a token with write access to that account, or another name"),
    404: ("there is no such account or repository", "check the name; it is OWNER/NAME"),
}
_READ_REFUSALS = {
    401: ("there is no such repository, or it is private", "check the name; log in with `hf auth login`"),
    403: ("the token may not read it", "ask for access on its page, or use a token that may read it"),
    404: ("there is no such repository or revision", "check the name, OWNER/NAME, and --revision"),
}


def check_name(name: str) -> None:
    """Refuse what cannot be `OWNER/NAME` or `NAME`, without asking the Hub.

    Raises:
        UserError: it is no name of a repository.
    """
    try:
        validate_repo_id(name)
    except HFValidationError as error:
        raise UserError(
            f"{name!r}: no name of a repository; expected OWNER/NAME ({error})",
            "letters, digits, '-', '_' and '.', with one '/' in between",
        ) from None


def writing_api() -> HfApi:
    """The Hub's interface for a token that may write.

    Raises:
        UserError: there is no token.
    """
    token = get_token()
    if token is None:
        raise UserError(
            "no token for the Hub; expected one that may write",
            remedy=f"set HF_TOKEN, or log in with `hf auth login`; tokens: {_TOKENS}",
        )
    return HfApi(token=token)


def full_name(api: HfApi, name: str) -> str:
    """`OWNER/NAME`; a name alone is one of the token's account."""
    with hub_errors(name, api.endpoint):
        return name if "/" in name else f"{api.whoami()['name']}/{name}"


def commit(
    api: HfApi,
    name: str,
    files: Mapping[str, Path | bytes],
    message: str,
    *,
    repo_type: RepoType,
    private: bool,
    revision: str | None = None,
    replaced: Sequence[str] = (),
) -> tuple[str, bool]:
    """Put files into a repository in one commit; the repository is made where there is none.

    Args:
        name: `owner/name`, or `name` for the token's own account.
        files: path in the repository → file, or content.
        private: the repository must be private.
        revision: a branch, which is made where there is none; None is the main one.
        replaced: patterns of paths; files of the repository that fit and are not in `files` go in the same commit.

    Returns:
        the repository's address, and whether it is private.

    Raises:
        UserError: the Hub's no, or no Hub; the repository then holds what it held before.
    """
    repo = full_name(api, name)
    with hub_errors(name, api.endpoint):
        url = api.create_repo(repo, repo_type=repo_type, private=private, exist_ok=True)
        is_private = bool(api.repo_info(repo, repo_type=repo_type).private)
        if private and not is_private:
            raise UserError(
                f"{repo}: is a public repository; expected a private one",
                remedy="make it private in its settings on the Hub, push to another name, or add --public",
            )
        if revision is not None:
            api.create_branch(repo, branch=revision, repo_type=repo_type, exist_ok=True)
        there = api.list_repo_files(repo, repo_type=repo_type, revision=revision) if replaced else []
        operations: list[CommitOperationAdd | CommitOperationDelete] = [
            CommitOperationAdd(path, content) for path, content in files.items()
        ]
        stale = [path for path in there if path not in files and any(fnmatch(path, pattern) for pattern in replaced)]
        operations += [CommitOperationDelete(path) for path in stale]
        api.create_commit(repo, operations, repo_type=repo_type, revision=revision, commit_message=message)
    return str(url), is_private


def download(name: str, out: Path, *, revision: str | None = None) -> list[str]:
    """A model repository as the folder `out`, which comes into being when all of it is there.

    What has arrived is kept in `OUT.partial`, and the next call goes on with it.

    Returns:
        the paths of its files.

    Raises:
        UserError: the Hub's no, no Hub, or `out` already holds something.
    """
    check_name(name)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out}: already exists; expected a new folder", "choose another one, or remove it")
    partial = out.with_name(out.name + ".partial")
    api = HfApi(token=get_token())
    with hub_errors(name, api.endpoint, reading=True, kept=partial):
        info = api.model_info(name, revision=revision)
        # By commit, so that a download that goes on tomorrow mixes no two versions.
        snapshot_download(name, revision=info.sha, local_dir=partial, token=api.token, endpoint=api.endpoint)
    files = sorted(sibling.rfilename for sibling in info.siblings or ())
    if missing := [file for file in files if not (partial / file).is_file()]:
        raise UserError(f"{name}: {', '.join(missing)} did not arrive", f"run it again; {partial} is kept")
    wanted = {partial / file for file in files}
    for path in list(partial.rglob("*")):
        if path.is_file() and path not in wanted and ".cache" not in path.relative_to(partial).parts:
            path.unlink()  # of another revision that was begun before
    shutil.rmtree(partial / ".cache", ignore_errors=True)
    out.parent.mkdir(parents=True, exist_ok=True)
    os.replace(partial, out)
    return files


def check_no_link(path: Path, folder: Path) -> None:
    """Refuse a file that a symbolic link, its own or a folder's, brings in from outside of the folder.

    What is pushed is what lies in the folder: a link would publish whatever it leads to.

    Raises:
        UserError: it leads out of the folder.
    """
    target = path.resolve()
    if not target.is_relative_to(folder.resolve()):
        raise UserError(
            f"{path}: a symbolic link, or a path, that leads out of {folder} to {target}; expected a file of it",
            remedy=f"remove it; or, where {target} is meant to be part of the push, put a copy of it in its place",
        )


@contextmanager
def hub_errors(name: str, endpoint: str, *, reading: bool = False, kept: Path | None = None) -> Iterator[None]:
    """Turns what the Hub, its client and the network raise into one message about `name`."""
    again = "the same command goes on where it stopped" + (f" ({kept} holds what has arrived)" if kept else "")
    try:
        yield
    except (HTTPError, HFValidationError, OfflineModeIsEnabled, LocalEntryNotFoundError, RuntimeError) as error:
        raise _described(_cause(error), name, endpoint, again, reading=reading) from error


def _cause(error: BaseException) -> BaseException:
    """What the client wrapped: a file that could not be sent or fetched hides the Hub's answer."""
    while isinstance(error, RuntimeError | LocalEntryNotFoundError) and error.__cause__ is not None:
        error = error.__cause__
    return error


def _described(error: BaseException, name: str, endpoint: str, again: str, *, reading: bool) -> UserError:
    if isinstance(error, HfHubHTTPError):
        status = error.response.status_code
        what, remedy = (_READ_REFUSALS if reading else _REFUSALS).get(status, ("", again))
        if not what:
            what = "the Hub has a failure of its own" if status >= 500 else (error.server_message or "it says no more")
        return UserError(f"{name}: the Hub at {endpoint} answered {status}: {what}", remedy)
    if isinstance(error, HFValidationError):
        return UserError(f"{name!r}: no name of a repository; expected OWNER/NAME ({error})", "check the name")
    if isinstance(error, OfflineModeIsEnabled):
        return UserError(f"{name}: HF_HUB_OFFLINE is set, so the Hub is not asked", "unset HF_HUB_OFFLINE")
    if isinstance(error, RuntimeError):
        return UserError(f"{name}: the exchange with the Hub at {endpoint} broke off ({error})", again)
    return UserError(
        f"{name}: the Hub at {endpoint} cannot be reached ({error})", f"check the network and HF_ENDPOINT; {again}"
    )

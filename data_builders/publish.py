"""A build to the Hub, as a dataset repository: what the manifest vouches for and nothing else.

Nothing is sent before everything has been checked here: that the folder is a build, that its files are the ones
that the manifest lists, and that their sources allow what is asked. Rows that were put aside (`bad_rows.jsonl`) stay
at home: they are no part of the data and name paths of this machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import CommitOperationAdd, HfApi, get_token
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, HTTPError, OfflineModeIsEnabled

from d2e_sft.errors import UserError
from d2e_sft.files import sha256_of
from data_builders.card import CARD_NAME, render_card
from data_builders.manifest import MANIFEST_NAME, read_manifest, restricted


@dataclass(frozen=True)
class Published:
    """What was sent.

    Attributes:
        url: of the dataset's page.
        files: paths in the repository.
        private: whether the repository is.
        restricted: dataset → why its rows must not be published.
    """

    url: str
    files: list[str]
    private: bool
    restricted: Mapping[str, str]


def publish(folder: Path, name: str, *, private: bool = True, allow_restricted: bool = False) -> Published:
    """Commit a build's files to a dataset repository of the Hub, which is made where there is none.

    Args:
        folder: what `d2e data build` wrote.
        name: `owner/name`, or `name` for the token's own account.
        private: whether the repository must be private.
        allow_restricted: publish even where a source does not allow it.

    Raises:
        UserError: no build, files that are not the manifest's, a source that forbids it, no token, or the Hub's no.
    """
    manifest = read_manifest(folder)
    files = _checked_files(folder, manifest)
    closed = restricted(manifest)
    if closed and not private and not allow_restricted:
        raise UserError(
            f"{folder}: rows of {len(closed)} datasets must not be published: {_listed(closed)}",
            remedy="push it as --private, build it without them, or, where you may publish them, "
            "pass --allow-restricted",
        )
    token = get_token()
    if token is None:
        raise UserError(
            "no token for the Hub; expected one that may write",
            remedy="set HF_TOKEN, or log in with `hf auth login`; tokens: https://huggingface.co/settings/tokens",
        )
    card = folder / CARD_NAME
    content = card.read_bytes() if card.is_file() else render_card(manifest).encode()
    operations = [CommitOperationAdd(path.name, path) for path in files] + [CommitOperationAdd(CARD_NAME, content)]
    api = HfApi(token=token)
    with _hub_errors(name, api.endpoint):
        repo = name if "/" in name else f"{api.whoami()['name']}/{name}"
        url = api.create_repo(repo, repo_type="dataset", private=private, exist_ok=True)
        is_private = bool(api.repo_info(repo, repo_type="dataset").private)
        if private and not is_private:
            raise UserError(
                f"{repo}: is a public repository; expected a private one",
                remedy="make it private in its settings on the Hub, push to another name, or pass --public",
            )
        api.create_commit(
            repo, operations, repo_type="dataset", commit_message=f"d2e-sft {manifest['version']}: {_what(manifest)}"
        )
    return Published(str(url), [operation.path_in_repo for operation in operations], is_private, closed)


def _checked_files(folder: Path, manifest: Mapping[str, Any]) -> list[Path]:
    files = []
    for name, entry in manifest["outputs"].items():
        path = folder / name
        if path.suffix != ".parquet":
            continue
        if not path.is_file():
            raise UserError(f"{path}: no such file, but {MANIFEST_NAME} lists it", remedy="build the data again")
        if (found := sha256_of(path)) != entry["sha256"]:
            raise UserError(
                f"{path}: has sha256 {found}; expected {entry['sha256']}, as {MANIFEST_NAME} says",
                remedy="the file was changed after the build: build the data again, so that the manifest tells the "
                "truth about it",
            )
        files.append(path)
    return [*files, folder / MANIFEST_NAME]


def _what(manifest: Mapping[str, Any]) -> str:
    return str(manifest.get("suite") or ", ".join(manifest["datasets"]))


def _listed(closed: Mapping[str, str]) -> str:
    return "; ".join(f"{name} ({reason})" for name, reason in closed.items())


_REFUSALS = {
    401: ("the token is not valid", "get one that may write: https://huggingface.co/settings/tokens"),
    403: ("the token may not write there", "use a token with write access to that account, or another name"),
    404: ("there is no such account or repository", "check the name; it is OWNER/NAME"),
}


@contextmanager
def _hub_errors(name: str, endpoint: str) -> Iterator[None]:
    try:
        yield
    except HfHubHTTPError as error:
        status = error.response.status_code
        what, remedy = _REFUSALS.get(status, ("", "try again"))
        if not what:
            what = "the Hub has a failure of its own" if status >= 500 else (error.server_message or "it says no more")
        raise UserError(f"{name}: the Hub at {endpoint} answered {status}: {what}", remedy) from None
    except HFValidationError as error:
        raise UserError(f"{name!r}: no name of a repository; expected OWNER/NAME ({error})") from None
    except (HTTPError, OfflineModeIsEnabled) as error:
        raise UserError(
            f"{name}: the Hub at {endpoint} cannot be reached ({error})", "check the network and HF_ENDPOINT"
        ) from None

"""The README, the links and the author in the wheel's metadata, which are read where the repository's files are not.

REPOSITORY_URL, which CI sets, is the repository's address, and AUTHOR_EMAIL one at which its authors are reached; the
project's files state neither.
"""

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_LINK = re.compile(r"\[([^\[\]]+)\]\((?!\w+:)([^()\s]+)\)")
_PICTURE = re.compile(r"<img [^>]*>\n*")


def away_from_home(text: str, address: str) -> str:
    """Return a page without pictures of the repository, whose links lead to its address; without one, without links.

    Args:
        address: ``https://host/owner/name/blob/v0.1.0``, empty if it is not known.
    """
    target = rf"[\1]({address}/\2)" if address else r"\1"
    return _LINK.sub(target, _PICTURE.sub("", text))


class ReadmeAndLinks(MetadataHookInterface):
    """Adds what pyproject.toml lists as dynamic."""

    PLUGIN_NAME = "custom"

    def update(self, metadata: dict[str, Any]) -> None:
        repository = os.environ.get("REPOSITORY_URL", "")
        page = f"{repository}/blob/v{metadata['version']}" if repository else ""
        text = away_from_home((Path(self.root) / "README.md").read_text(), page)
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
        address = os.environ.get("AUTHOR_EMAIL", "")
        metadata["authors"] = [{"name": "membench developers", **({"email": address} if address else {})}]
        metadata["urls"] = {"Source": repository, "Changes": f"{page}/CHANGELOG.md"} if repository else {}

"""Models by their name on the Hugging Face hub."""

import os
import re
from pathlib import Path

import huggingface_hub
from huggingface_hub.errors import HfHubHTTPError

from maxtext.checkpoint.errors import brief
from maxtext.conversion.errors import ConversionError

_NAME = re.compile(r"[\w.-]+/[\w.-]+")
_WANTED = ["*.json", "*.safetensors", "*.jinja", "merges.txt", "tokenizer.model"]
# The same weights once more, in the makers' own format.
_UNWANTED = ["consolidated*", "original/*"]


def local_folder(source: str) -> Path:
    """The folder that `source` names, or that of a model of the hub, which is downloaded first.

    Raises:
        ConversionError: There is neither.
    """
    place = Path(os.path.expanduser(source))
    if place.is_dir():
        return place
    if place.exists():
        raise ConversionError(f"{source} is a file; give the folder that holds config.json")
    if not _NAME.fullmatch(source):
        raise ConversionError(
            f"{source}: there is no such folder, and no model of the hub has such a name"
        )
    try:
        return Path(
            huggingface_hub.snapshot_download(
                source, allow_patterns=_WANTED, ignore_patterns=_UNWANTED
            )
        )
    except (HfHubHTTPError, OSError, ValueError) as error:
        raise ConversionError(
            f"{source}: there is no such folder, and the hub gives no such model ({brief(error)})"
        ) from error

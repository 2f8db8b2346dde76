"""Options of a plate at an ``s3://`` address: Snakemake's plugin has the same for all plates."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from scatlas.errors import InputError


def set_options(provider: Any, profile: str | None, *, requester_pays: bool) -> None:
    """Give the plugin's provider the profile of a plate, and let the account pay."""
    session = import_module("boto3").Session  # a package of the plugin
    if profile and profile not in session().available_profiles:
        msg = f"s3_profile {profile!r} is not in ~/.aws: correct the plate sheet"
        raise InputError(msg)
    if profile:
        provider.s3c = session(profile_name=profile).resource("s3")
    if requester_pays:
        provider.s3c.meta.client.meta.events.register("before-call.s3", _pay)


def _pay(params: dict[str, Any], **_: Any) -> None:
    params["headers"]["x-amz-request-payer"] = "requester"

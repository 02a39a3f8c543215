"""Hooks by name: the trackers, and those of other packages, by their entry points."""

from importlib import import_module
from importlib.metadata import entry_points

from phalanx.errors import ConfigurationError
from phalanx.train.config import RunConfig
from phalanx.train.hooks.base import Hook

GROUP = "phalanx.hooks"
_TRACKERS = {"mlflow": "MLflowHook", "wandb": "WandbHook", "hparams": "HParamsHook"}


def load_hooks(config: RunConfig) -> list[Hook]:
    """Return the hooks that `--hooks` names.

    An entry point is a function or a class that is called with the config, and returns a hook.
    """
    names = [name.strip() for name in (config.hooks or "").split(",") if name.strip()]
    points = {point.name: point for point in entry_points(group=GROUP)} if names else {}
    found: list[Hook] = []
    for name in names:
        if name in _TRACKERS:
            hooks = import_module("phalanx.train.hooks.tracking")
            found.append(getattr(hooks, _TRACKERS[name])(config))
            continue
        if name not in points:
            known = ", ".join(sorted({*points, *_TRACKERS}))
            raise ConfigurationError(
                f"hooks is {config.hooks!r}, but there is no hook {name!r} ({known}): "
                f"install a package with an entry point in the group {GROUP!r}"
            )
        hook = points[name].load()(config)
        if not isinstance(hook, Hook):
            raise ConfigurationError(
                f"the entry point {name!r} in the group {GROUP!r} returned "
                f"{type(hook).__name__}, which is not a phalanx.hooks.Hook"
            )
        found.append(hook)
    return found

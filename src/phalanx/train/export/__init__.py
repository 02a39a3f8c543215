"""Export of trained models as SavedModels with serving signatures."""

from phalanx.train.export.saved_model import export

__all__ = ["export"]

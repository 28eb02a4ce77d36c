"""Settings that must be made before mmpretrain is imported; importing this module makes them."""

import os
import warnings

# Otherwise Albumentations asks the package index for updates.
os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")
# mmcv-lite lacks it, and nothing here needs it.
warnings.filterwarnings("ignore", message="Fail to import ``MultiScaleDeformableAttention``")

"""Settings that have to be made before mmpretrain is imported; importing this module makes them."""

import os
import warnings

# Albumentations would ask the package index for updates.
os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")
# mmcv-lite holds all that is used here; what it leaves out is no news to a user.
warnings.filterwarnings("ignore", message="Fail to import ``MultiScaleDeformableAttention``")

# RetinaNet (arXiv 1708.02002) on maps of stride 8 to 32, with P6 and P7 on the last of them.
_base_ = "detection_1x.py"

model = dict(type="TorchvisionRetinaNet")

# The same with an average of the weights, from which the model learns after a quarter of the run (MESA).
# A config adds the name of its model and mesa_ratio.
_base_ = "zoo.py"

model = dict(type="MesaClassifier")
# One minus 0.9996^(batch / 4096).
custom_hooks = [dict(type="EMAEvalHook", momentum=1e-4), dict(type="MesaHook", begin=0.25)]

# The recipe of VMamba (github.com/MzeroMiko/VMamba): that of zoo.py, with an average of the weights, in fp16 (--amp).
# A config adds the name of its model and its drop path rate.
_base_ = "zoo.py"

# One minus 0.9999.
custom_hooks = [dict(type="EMAEvalHook", momentum=1e-4)]

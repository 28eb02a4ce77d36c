# python tools/train.py configs/bags/nystrom.py --cfg-options data_root=bags.csv
# Bags by two blocks of Nystrom attention with 256 landmarks and a class token, as in TransMIL (Shao et al., arXiv
# 2106.00908), whose encoding of places is left out. Not tuned. For any other type that takes sequences:
# python tools/train.py configs/bags/gated.py --cfg-options data_root=bags.csv model.pool=token model.attention=linear
_base_ = "gated.py"

model = dict(attention="nystrom", depth=2, num_heads=4, pool="token", max_landmarks=16)

"""Log the data, the model, the schedule and the device at the start of a run."""

import torch
from mmengine.dist import get_world_size, is_main_process
from mmengine.hooks import Hook
from mmengine.runner import EpochBasedTrainLoop, Runner

from soft_vit.engine.ask import start_weights
from soft_vit.engine.models.timm_model import classes_of, unwrapped
from soft_vit.probe.cost import machine_description
from soft_vit.registry import HOOKS, register

# Maximum number of class names in a line of the log.
_NAMED_CLASSES = 10


@register(HOOKS)
class SummaryHook(Hook):
    """Logs the data, the model, the schedule, the device and the folder of the results before the first step."""

    def before_train(self, runner: Runner) -> None:
        if not is_main_process():
            return
        dtype = str(getattr(runner.optim_wrapper, "dtype", torch.float32)).removeprefix("torch.")
        machine = machine_description(next(runner.model.parameters()).device)
        lines = {"Data": self._data(runner), "Model": self._model(runner), "Schedule": self._schedule(runner)}
        lines |= {"Device": f"{dtype} on {machine}", "Results": f"{runner.work_dir}, log {runner.logger.log_file}"}
        for name, text in lines.items():
            runner.logger.info(f"{name}: {text}.")

    def _data(self, runner: Runner) -> str:
        dataset = runner.train_dataloader.dataset
        counts = f"{len(dataset):,} images to train on"
        if runner.val_loop is not None:
            counts += f", {len(runner.val_dataloader.dataset):,} for validation"
        if not (classes := classes_of(dataset)):
            return counts
        names = f": {', '.join(classes)}" if len(classes) <= _NAMED_CLASSES else ""
        return f"{counts}, {len(classes)} classes{names}"

    def _model(self, runner: Runner) -> str:
        model, cfg = unwrapped(runner.model), runner.cfg
        trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
        total = sum(p.numel() for p in model.parameters())
        parts = [cfg.model.get("model_name") or type(model).__name__, f"{total / 1e6:.2f} M parameters"]
        if trained < total:
            parts.append(f"{trained / 1e6:.2f} M of them trained")
        start = start_weights(cfg)
        if cfg.get("resume"):
            parts.append(f"resumed from {start} at iteration {runner.iter}")
        else:
            parts.append(f"weights from {start}" if start else "random weights")
        return ", ".join(parts)

    def _schedule(self, runner: Runner) -> str:
        steps = f"{runner.max_iters} iterations"
        if isinstance(runner.train_loop, EpochBasedTrainLoop):
            steps = f"{runner.max_epochs} x {len(runner.train_dataloader)} iterations"
        images = runner.train_dataloader.batch_sampler.batch_size * get_world_size()
        optimizer = runner.optim_wrapper.optimizer
        rate = max(group.get("initial_lr", group["lr"]) for group in optimizer.param_groups)
        names = "".join(f", {type(one).__name__}" for one in runner.param_schedulers or ())
        return f"{steps} of {images} images, {type(optimizer).__name__} at learning rate {rate:g}{names}"

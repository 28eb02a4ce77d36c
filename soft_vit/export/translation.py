"""Translate captured graphs to ONNX in few steps.

`torch.onnx.export` decomposes a graph by tracing it twice more with symbolic sizes, and onnxscript compares every node
with all others. Both take minutes for graphs of thousands of nodes.
"""

import operator
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload
from torch.export import ExportedProgram
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.node import map_arg

aten = torch.ops.aten

Table = Mapping[Any, Callable[..., Any]]
"""Operators that ONNX has no translation of, and functions that compute them by others."""

COMPOSITE = (aten.movedim.int, aten.mT.default, aten.batch_norm.default, aten.to.dtype, aten.to.device)
COMPOSITE += (aten.tensor_split.sections,)
"""Operators that ONNX has no translation of, or an Einsum as that of `mT`, and that tables leave out."""
RESHAPES = (aten.flatten.using_ints, aten.unflatten.int, aten.reshape.default, aten.view.default)
DROPOUTS = (aten.dropout.default, aten.feature_dropout.default)
NO_EFFECT = (aten.alias.default, aten.contiguous.default, aten.to.dtype, *DROPOUTS)
"""Operators without effect on values in eval mode, unless they change the type."""


def translate(program: ExportedProgram, **names: Any) -> "torch.onnx.ONNXProgram":
    """Return the ONNX form of a captured graph, which changes in place. names: arguments of `torch.onnx.export`."""
    from onnx_ir.passes import common
    from onnxscript.optimizer import fold_constants

    how = dict(dynamo=True, verbose=False, optimize=False, **names)
    program.run_decompositions = partial(decompose, program)
    try:
        translated = torch.onnx.export(program, **how)
    except torch.onnx.errors.OnnxExporterError:
        # `decompose` leaves an operator that ONNX has no translation of.
        delattr(program, "run_decompositions")
        translated = torch.onnx.export(program, **how)
    common.InlinePass()(translated.model)
    fold_constants(translated.model)
    common.RemoveUnusedNodesPass()(translated.model)
    common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(translated.model)
    common.DeduplicateInitializersPass()(translated.model)
    common.CommonSubexpressionEliminationPass()(translated.model)
    common.OutputFixPass()(translated.model)
    common.NameFixPass()(translated.model)
    return translated


def decompose(program: ExportedProgram, table: Table) -> ExportedProgram:
    """Replace operators of a captured graph, in place, by those that they are computed by, one at a time.

    A graph that writes to a tensor that is read elsewhere is decomposed as a whole.
    """
    graph = program.graph
    if any(overwrites(node) for node in graph.nodes):
        return ExportedProgram.run_decompositions(program, dict(table))
    for node in list(graph.nodes):
        if isinstance(node.target, OpOverload):
            simplify(node, table)
    share_equal_nodes(graph)
    (outputs,) = graph.output_node().args
    for spec, node in zip(program.graph_signature.output_specs, outputs, strict=True):
        spec.arg.name = node.name
    program.graph_module.recompile()
    return program


def overwrites(node: fx.Node) -> bool:
    """Return whether an operator writes to a tensor that others read, or that may be a part of one."""
    if not isinstance(node.target, OpOverload) or not node.target._schema.is_mutable:
        return False
    written = node.args[0]
    source = written.args[0] if written.target is operator.getitem else written
    fresh = isinstance(source.target, OpOverload) and not any(x.alias_info for x in source.target._schema.returns)
    return len(written.users) > 1 or not fresh


def simplify(node: fx.Node, table: Table) -> None:
    """Replace an operator by what it is computed by, or give it fewer arguments."""
    op, graph = node.target, node.graph
    if op is aten._assert_tensor_metadata.default:
        return graph.erase_node(node)
    if op._schema.is_mutable:
        name = op._schema.name.removeprefix("aten::").removesuffix("_")
        op = node.target = getattr(getattr(aten, name), op._overloadname)
    x, result = next(iter(node.all_input_nodes), None), node.meta["val"]
    if op in NO_EFFECT and x.meta["val"].dtype == result.dtype and not (op in DROPOUTS and node.args[2]):
        node.replace_all_uses_with(x)
        graph.erase_node(node)
    elif op in RESHAPES and sum(not isinstance(side, int) for side in result.shape) <= 1:
        node.target = aten.reshape.default
        node.args = x, [side if isinstance(side, int) else -1 for side in result.shape]
        node.kwargs = {}
    elif op is aten.movedim.int:
        order = list(range(result.ndim))
        order.insert(node.args[2] % result.ndim, order.pop(node.args[1] % result.ndim))
        node.target, node.args = aten.permute.default, (x, order)
    elif op is aten.mT.default:
        node.target, node.args = aten.transpose.int, (x, -2, -1)
    elif op in table or op in COMPOSITE:
        inline(node, table)


def inline(node: fx.Node, table: Table) -> None:
    """Replace an operator by the graph of its decomposition."""
    op, inputs = node.target, node.all_input_nodes

    def compute(*values: Any) -> Any:
        args, kwargs = map_arg((node.args, node.kwargs), dict(zip(inputs, values, strict=True)).__getitem__)
        return table.get(op, op.decompose)(*args, **kwargs)

    values = [each.meta["val"] for each in inputs]
    with torch._guards.detect_fake_mode([*values, node.meta["val"]]):
        traced = make_fx(compute, decomposition_table=table, tracing_mode="symbolic")(*values)
    copies: dict[fx.Node, fx.Node] = dict(zip(traced.graph.find_nodes(op="placeholder"), inputs, strict=True))
    with node.graph.inserting_before(node):
        result = node.graph.graph_copy(traced.graph, copies)
    for copy in set(copies.values()).difference(inputs):
        copy.meta["nn_module_stack"] = node.meta.get("nn_module_stack")
    for user in [] if isinstance(result, fx.Node) else list(node.users):
        user.replace_all_uses_with(result[user.args[1]])
        node.graph.erase_node(user)
    if isinstance(result, fx.Node):
        node.replace_all_uses_with(result)
    node.graph.erase_node(node)


def share_equal_nodes(graph: fx.Graph) -> None:
    """Compute once, in place, what several nodes compute, such as the tables of positions of equal blocks."""
    first: dict[tuple[Any, str], fx.Node] = {}
    for node in list(graph.nodes):
        if not isinstance(node.target, OpOverload) or torch.Tag.nondeterministic_seeded in node.target.tags:
            continue
        equal = first.setdefault((node.target, repr((node.args, node.kwargs))), node)
        if equal is not node:
            node.replace_all_uses_with(equal)
            graph.erase_node(node)
    graph.eliminate_dead_code()

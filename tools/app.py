"""Serve a web page that shows what two models predict for an image, and where each of its tokens looks.

python tools/app.py
python tools/app.py --model soft_tiny --checkpoint FILE
"""

import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

# Read when the client of the Hub is imported: the page downloads nothing.
os.environ["HF_HUB_OFFLINE"] = "1"

from soft_vit.cli import ArgumentParser, command_line
from soft_vit.models.base import require_known


@command_line
def main(argv: Sequence[str]) -> None:
    parser = ArgumentParser(__doc__)
    parser.add_argument("--model", metavar="NAME", help="a model to offer, with random weights or --checkpoint")
    parser.add_argument("--checkpoint", metavar="FILE", help="weights of --model")
    what = "address to serve on, such as 0.0.0.0 (default: only this machine)"
    parser.add_argument("--host", default="127.0.0.1", help=what)
    parser.add_argument("--port", type=int, help="(default: the first free port from 7860)")
    args = parser.parse_args(argv)
    if args.checkpoint and not args.model:
        raise ValueError("--checkpoint must be given with --model, the name of its model.")
    if args.model:
        require_known(args.model)
    if args.checkpoint and not Path(args.checkpoint).is_file():
        raise FileNotFoundError(f"--checkpoint must be an existing file, got {args.checkpoint}.")
    with tempfile.TemporaryDirectory() as folder:
        # Gradio reads these when it is imported. The page itself writes no files.
        os.environ.update(GRADIO_ANALYTICS_ENABLED="False", GRADIO_TEMP_DIR=folder)
        from soft_vit.predict.app import STYLE, build_page, theme
        from soft_vit.predict.app_look import MAX_BYTES, available

        blocks = build_page(available(args.checkpoint, args.model))
        try:
            # By default, Gradio keeps images in the browser for its list of runs, and may open a tunnel.
            local = dict(share=False, run_history=False, enable_monitoring=False)
            look = dict(theme=theme(), css=STYLE, footer_links=[], max_file_size=MAX_BYTES)
            where = dict(server_name=args.host, server_port=args.port, prevent_thread_lock=True, quiet=True)
            _, address, _ = blocks.launch(**local, **look, **where)
        except OSError as error:
            raise ValueError(f"The page cannot be served ({error}). Use another --host or --port.") from error
        print(f"Open {address} in a browser; Ctrl-C ends it.", flush=True)
        # End the page and delete the folder, as Ctrl-C does.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit())
        blocks.block_thread()


if __name__ == "__main__":
    main()

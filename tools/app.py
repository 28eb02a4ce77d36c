"""Serve a web page that shows what models make of an image: the prediction, where a token looks, spectra, shares.

python tools/app.py
python tools/app.py --model soft_tiny --checkpoint FILE
"""

import argparse
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from soft_vit.cli import command_line
from soft_vit.models.base import require_known


@command_line
def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", metavar="NAME", help="the model of --checkpoint")
    parser.add_argument("--checkpoint", metavar="FILE", help="weights to offer beside those on this machine")
    parser.add_argument(
        "--host", default="127.0.0.1", help="address to serve on, such as 0.0.0.0 (default: this machine alone)"
    )
    parser.add_argument("--port", type=int, help="(default: a free one from 7860)")
    args = parser.parse_args(argv)
    if (args.model is None) != (args.checkpoint is None):
        raise ValueError("Give --model and --checkpoint together: the name of a model, and the file of its weights.")
    if args.model:
        require_known(args.model)
        if not Path(args.checkpoint).is_file():
            raise FileNotFoundError(f"There is no file {args.checkpoint}; give the path of weights that exist.")
    with tempfile.TemporaryDirectory() as folder:
        # Gradio reads them when it is imported. The page itself puts nothing into the folder.
        os.environ.update(GRADIO_ANALYTICS_ENABLED="False", GRADIO_TEMP_DIR=folder)
        from soft_vit.predict.app import STYLE, build_page, theme
        from soft_vit.predict.app_look import MAX_BYTES, available

        blocks = build_page(available(args.checkpoint, args.model))
        try:
            # Gradio would also keep images in the browser, for its list of earlier runs, and offer a tunnel.
            _, address, _ = blocks.launch(
                server_name=args.host,
                server_port=args.port,
                share=False,
                run_history=False,
                enable_monitoring=False,
                footer_links=[],
                max_file_size=MAX_BYTES,
                theme=theme(),
                css=STYLE,
                prevent_thread_lock=True,
                quiet=True,
            )
        except OSError as error:
            raise ValueError(f"The page cannot be served ({error}); give another --host or --port.") from error
        print(f"Open {address} in a browser; Ctrl-C ends it.", flush=True)
        # Ends the page, and the folder with it, as Ctrl-C does.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit())
        blocks.block_thread()


if __name__ == "__main__":
    main()

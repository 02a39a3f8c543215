"""SavedModels: each in a directory that is named for the time, and that is complete or absent."""

import os
import time
import uuid
from collections.abc import Mapping
from typing import Any

import tensorflow.compat.v1 as tf


def write_saved_model(
    session: Any,
    base: str,
    signatures: Mapping[str, Any],
    main_op: Any,
    assets_extra: Mapping[str, str],
    *,
    as_text: bool,
    strip_default_attrs: bool,
) -> str:
    """Write the graph and the variables of a session into a new directory, and return its path.

    Args:
        session: The session, with restored variables.
        base: The directory of all exports of the model.
        signatures: The signatures by name.
        main_op: Runs when the model is loaded; None initializes local variables and tables.
        assets_extra: Files to copy into `assets.extra`, by their names there.
        as_text: Whether to write the graph as text.
        strip_default_attrs: Whether to leave out attributes with default values.
    """
    stamp = int(time.time())
    while tf.gfile.Exists(f"{base}/{stamp}"):
        stamp += 1
    temporary = f"{base}/temp-{stamp}-{uuid.uuid4().hex[:8]}"
    try:
        builder = tf.saved_model.Builder(temporary)
        builder.add_meta_graph_and_variables(
            session,
            [tf.saved_model.SERVING],
            signature_def_map=signatures,
            assets_collection=tf.get_collection(tf.GraphKeys.ASSET_FILEPATHS),
            main_op=main_op or tf.group(tf.local_variables_initializer(), tf.tables_initializer()),
            strip_default_attrs=strip_default_attrs,
        )
        builder.save(as_text)
        for name, source in assets_extra.items():
            destination = f"{temporary}/assets.extra/{name}"
            tf.gfile.MakeDirs(os.path.dirname(destination))  # noqa: PTH120
            tf.gfile.Copy(source, destination)
        tf.gfile.Rename(temporary, f"{base}/{stamp}")
    except BaseException:
        if tf.gfile.Exists(temporary):
            tf.gfile.DeleteRecursively(temporary)
        raise
    return f"{base}/{stamp}"

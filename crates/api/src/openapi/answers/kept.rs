//! The schemas of files and batches.

use serde_json::json;

use super::{Named, list, named, object, one_of, or_null, text, whole};

/// Schemas of files, batches and lists of both.
pub(super) fn kept() -> Named {
    let file = object(
        [
            ("id", text()),
            ("object", one_of(&["file"])),
            ("bytes", whole()),
            ("created_at", whole()),
            ("expires_at", or_null(whole())),
            ("filename", text()),
            ("purpose", text()),
            ("status", one_of(&["processed"])),
        ],
        [],
    );
    let error = object(
        [("code", text()), ("line", or_null(whole())), ("message", text()), ("param", or_null(text()))],
        [],
    );
    let errors = object([("object", one_of(&["list"])), ("data", list(error))], []);
    let counts = object([("total", whole()), ("completed", whole()), ("failed", whole())], []);
    let batch = object(
        [
            ("id", text()),
            ("object", one_of(&["batch"])),
            ("endpoint", text()),
            ("errors", or_null(errors)),
            ("input_file_id", text()),
            ("completion_window", one_of(&["24h"])),
            ("status", text()),
            ("output_file_id", or_null(text())),
            ("error_file_id", or_null(text())),
            ("created_at", whole()),
            ("in_progress_at", or_null(whole())),
            ("expires_at", whole()),
            ("finalizing_at", or_null(whole())),
            ("completed_at", or_null(whole())),
            ("failed_at", or_null(whole())),
            ("expired_at", or_null(whole())),
            ("cancelling_at", or_null(whole())),
            ("cancelled_at", or_null(whole())),
            ("request_counts", counts),
            ("metadata", or_null(json!({"type": "object"}))),
        ],
        [],
    );
    let page = |name: &str| {
        object(
            [
                ("object", one_of(&["list"])),
                ("data", list(named(name))),
                ("first_id", or_null(text())),
                ("last_id", or_null(text())),
                ("has_more", json!({"type": "boolean"})),
            ],
            [],
        )
    };
    vec![("File", file), ("FileList", page("File")), ("Batch", batch), ("BatchList", page("Batch"))]
}

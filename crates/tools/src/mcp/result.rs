//! The result of an MCP tool as text for a model.

use rmcp::model::{CallToolResult, ContentBlock, ResourceContents};

/// The texts of a result, one a line; content other than text is named in its place. A result that has only a
/// structured value is that value as JSON.
pub(super) fn text_of(result: &CallToolResult) -> String {
    if result.content.is_empty()
        && let Some(value) = &result.structured_content
    {
        return value.to_string();
    }
    result.content.iter().map(text_of_block).collect::<Vec<_>>().join("\n")
}

fn text_of_block(block: &ContentBlock) -> String {
    match block {
        ContentBlock::Text(text) => text.text.clone(),
        ContentBlock::Image(image) => format!("[image of the type {}]", image.mime_type),
        ContentBlock::Audio(audio) => format!("[audio of the type {}]", audio.mime_type),
        ContentBlock::ResourceLink(link) => format!("[resource {}]", link.uri),
        ContentBlock::Resource(resource) => match &resource.resource {
            ResourceContents::TextResourceContents { text, .. } => text.clone(),
            ResourceContents::BlobResourceContents { uri, .. } => format!("[resource {uri}]"),
            _ => "[resource]".to_owned(),
        },
        _ => "[content of an unknown type]".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn texts_are_kept_and_other_content_is_named() {
        let result: CallToolResult = serde_json::from_value(json!({"content": [
            {"type": "text", "text": "a"},
            {"type": "image", "data": "AAAA", "mimeType": "image/png"},
            {"type": "resource", "resource": {"uri": "file:///b", "text": "b"}},
        ]}))
        .expect("a result");
        assert_eq!(text_of(&result), "a\n[image of the type image/png]\nb");
        let result: CallToolResult =
            serde_json::from_value(json!({"content": [], "structuredContent": {"n": 1}})).expect("a result");
        assert_eq!(text_of(&result), "{\"n\":1}");
    }
}

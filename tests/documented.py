"""Compares answers with the OpenAPI document of the server that gave them."""

import json

import jsonschema_rs

#: The schemas of the events of streams.
CHUNKS = {"/v1/chat/completions": "ChatCompletionChunk", "/v1/completions": "CompletionChunk"}


class Document:
    """The document of a server, as `/openapi.json` gives it."""

    def __init__(self, document):
        self.paths, self.components, self.validators = document["paths"], document["components"], {}

    def faults(self, method, path, status, kind, content):
        """What of an answer that is no error is not as the document says. `path` is as the document has it, `kind` the content type."""
        responses = self.paths[path].get(method.lower(), {}).get("responses", {})
        if str(status) not in responses:
            yield f"status {status} is not in the document"
        elif kind not in responses[str(status)].get("content", {"": None}):
            yield f"{kind} is not in the document"
        elif kind == "application/json":
            value, schema = json.loads(content), responses[str(status)]["content"][kind]["schema"]
            if "$ref" in schema:
                yield from self.faults_of_form(schema["$ref"].rsplit("/", 1)[1], value)
        elif kind == "text/event-stream":
            yield from self.faults_of_stream(path, content)

    def faults_of_stream(self, path, content):
        events = [event for event in content.decode().split("\n\n") if event and event != ": ping"]
        for event in events:
            if not event.startswith("data: "):
                yield f"an event without data: {event[:100]}"
            elif event != "data: [DONE]":
                value = json.loads(event.removeprefix("data: "))
                if "error" not in value:
                    yield from self.faults_of_form(CHUNKS[path], value)
        if not events or (events[-1] != "data: [DONE]" and '"error"' not in events[-1]):
            yield "a stream without an end"

    def faults_of_form(self, name, value):
        """What of a value is not as the schema of this name says."""
        if name not in self.validators:
            schema = {"$ref": f"#/components/schemas/{name}", "components": self.components}
            self.validators[name] = jsonschema_rs.Draft202012Validator(schema)
        for error in self.validators[name].iter_errors(value):
            yield f"not a {name}: {str(error)[:300]}"

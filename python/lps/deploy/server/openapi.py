"""The server's interface as an OpenAPI document."""

from __future__ import annotations

from typing import Any

_TASK = {
    "name": "task",
    "in": "path",
    "required": True,
    "description": "the name of a task or its number; with several files, file.task",
    "schema": {"type": "string"},
}
_VERSION = {
    "name": "version",
    "in": "path",
    "required": True,
    "description": "the digest of the task",
    "schema": {"type": "string"},
}
_TOP = {
    "name": "top",
    "in": "query",
    "description": "how many of the best classes to name",
    "schema": {"type": "integer", "minimum": 1, "default": 5},
}
_ERRORS = {
    "400": "the request is malformed",
    "401": "the token is missing or wrong",
    "404": "there is no such task or version",
    "408": "the request took too long to arrive",
    "413": "the request is too large",
    "415": "the kind of the body is not known",
    "422": "the task has no answer to these inputs",
    "503": "too many requests wait; Retry-After says when to ask again",
}

_SCHEMAS: dict[str, Any] = {
    "Error": {"type": "object", "required": ["error"], "properties": {"error": {"type": "string"}}},
    "Input": {
        "type": "object",
        "required": ["name", "shape", "datatype"],
        "properties": {
            "name": {"type": "string"},
            "shape": {"type": "array", "items": {"type": "integer", "minimum": 0}},
            "datatype": {"type": "string"},
            "parameters": {
                "type": "object",
                "properties": {"binary_data_size": {"type": "integer", "minimum": 0}},
            },
            "data": {"type": "array", "items": {}},
        },
    },
    "Request": {
        "type": "object",
        "required": ["inputs"],
        "properties": {
            "id": {"type": "string"},
            "parameters": {"type": "object", "properties": {"binary_data_output": {"type": "boolean"}}},
            "inputs": {"type": "array", "minItems": 1, "items": {"$ref": "#/components/schemas/Input"}},
            "outputs": {
                "type": "array",
                "items": {
                    "type": "object",
                    "required": ["name"],
                    "properties": {
                        "name": {"enum": ["logits", "probabilities", "class"]},
                        "parameters": {"type": "object", "properties": {"binary_data": {"type": "boolean"}}},
                    },
                },
            },
        },
    },
    "Rows": {
        "type": "object",
        "required": ["rows"],
        "additionalProperties": False,
        "properties": {
            "top": {"type": "integer", "minimum": 1},
            "rows": {
                "type": "array",
                "minItems": 1,
                "items": {
                    "type": "object",
                    "required": ["task", "input"],
                    "additionalProperties": False,
                    "properties": {"task": {"type": ["string", "integer"]}, "input": {}},
                },
            },
        },
    },
}


def document(version: str) -> dict[str, Any]:
    """The document for this version of the package."""
    model, versioned = "/v2/models/{task}", "/v2/models/{task}/versions/{version}"
    infer = _body({"application/json": _schema("Request"), "application/octet-stream": {"type": "string"}})
    image = {"type": "string", "format": "binary"}
    classify = _body({"application/json": {}, "image/png": image, "image/jpeg": image})
    rows = _body({"application/json": _schema("Rows")})
    paths: dict[str, Any] = {
        "/": _get("the page"),
        "/metrics": _get("metrics for Prometheus", kind="text/plain"),
        "/openapi.json": _get("this document"),
        "/v2": _get("name and version of the server"),
        "/v2/health/live": _get("200 while the server runs"),
        "/v2/health/ready": _get("200 once it answers"),
        "/v2/models": _get("all tasks with their metadata"),
        "/classify/{task}": _post("classes of an image, or of one or several examples as lists", classify, _TASK, _TOP),
        "/infer": _post("a batch with a task per row", rows),
    }
    for path, places in ((model, [_TASK]), (versioned, [_TASK, _VERSION])):
        paths[path] = _get("inputs, outputs, classes and version of a task", *places)
        paths[f"{path}/ready"] = _get("200 if the task is served", *places)
        paths[f"{path}/infer"] = _post("inference by the Open Inference Protocol, version 2", infer, *places)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "learn-prune-share",
            "version": version,
            "description": "Every task of one file: the Open Inference Protocol, version 2, and two shorter forms.",
        },
        "paths": paths,
        "components": {
            "schemas": _SCHEMAS,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"token": []}],
    }


def _schema(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


def _body(kinds: dict[str, Any]) -> dict[str, Any]:
    return {"required": True, "content": {kind: {"schema": schema} for kind, schema in kinds.items()}}


def _get(summary: str, *parameters: dict[str, Any], kind: str = "application/json") -> dict[str, Any]:
    return {"get": _operation(summary, parameters, kind)}


def _post(summary: str, body: dict[str, Any], *parameters: dict[str, Any]) -> dict[str, Any]:
    return {"post": {**_operation(summary, parameters, "application/json"), "requestBody": body}}


def _operation(summary: str, parameters: tuple[dict[str, Any], ...], kind: str) -> dict[str, Any]:
    content = {"application/json": {"schema": _schema("Error")}}
    answers = {status: {"description": text, "content": content} for status, text in _ERRORS.items()}
    answers["200"] = {"description": "the answer", "content": {kind: {}}}
    return {"summary": summary, "parameters": list(parameters), "responses": answers}

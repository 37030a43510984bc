package web

import (
	_ "embed"
	"net/http"
)

// description is the API's OpenAPI document; a test holds it against the routes
// and against real answers.
//
//go:embed openapi.json
var description []byte

func (h *Handler) getDescription(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(description)
}

package proxy

import (
	"errors"
	"net/http"
	"strings"
	"time"

	"lmwarden/internal/access"
	"lmwarden/internal/llmapi"
)

// Access admits requests by the API key that they show and the model that they ask
// for. *access.Gate is one.
type Access interface {
	// Known says whether a key is in force, or none is needed.
	Known(key string) bool
	// May says whether a key may ask for a model.
	May(key, model string) bool
	// Admit counts one request until its grant is released, to its key and to its
	// model, empty where that is not known. The error is
	// access.ErrUnauthorized, an *access.Forbidden or an *access.Limited.
	Admit(now time.Time, key, model string) (access.Grant, error)
}

// everybody is the Access without keys.
type everybody struct{}

func (everybody) Known(string) bool                                     { return true }
func (everybody) May(string, string) bool                               { return true }
func (everybody) Admit(time.Time, string, string) (access.Grant, error) { return access.Grant{}, nil }

// presentedKey is the key that a request shows, where the clients of either API
// put it.
func presentedKey(h http.Header) string {
	const bearer = "bearer "
	if v := h.Get("Authorization"); len(v) > len(bearer) && strings.EqualFold(v[:len(bearer)], bearer) {
		return strings.TrimSpace(v[len(bearer):])
	}
	if v := h.Get("X-Api-Key"); v != "" {
		return v
	}
	return h.Get("Api-Key")
}

// unauthorized refuses a request before its body is read.
func unauthorized() *failure {
	f := fail(llmapi.KindUnauthorized, ClientError, "%v", access.ErrUnauthorized)
	f.close, f.unread = true, true
	return f
}

// notAdmitted is the answer to a request that shows a key and gets no grant.
func notAdmitted(err error, known []string) *failure {
	var forbidden *access.Forbidden
	var limited *access.Limited
	switch {
	case errors.As(err, &forbidden):
		// As if there were no such model: a key learns nothing of others' models.
		return unknownModel(forbidden.Model, known)
	case errors.As(err, &limited):
		f := fail(llmapi.KindOverloaded, ClientError, "%v; try again in a moment", err)
		f.Code = http.StatusTooManyRequests
		f.RetryAfter = min(max(limited.Retry, time.Second), retryLate)
		return f
	}
	return unauthorized()
}

package server

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"strconv"
	"strings"
	"unicode/utf8"
)

// maxBody bounds what is read of a request. The engine itself has no limit; this one
// only keeps a test machine alive.
const maxBody = 256 << 20

// body is a request's JSON object. Its getters check the type of the one field they
// read, as the engine's schema does; the first violation is kept in err, so that a
// handler reads all it needs and looks at err once.
type body struct {
	fields map[string]json.RawMessage
	err    *apiError
}

// readBody reads and checks the body as far as the engine does before its handlers.
func readBody(r *http.Request) (*body, *apiError) {
	raw, err := io.ReadAll(http.MaxBytesReader(nil, r.Body, maxBody))
	if tooLarge := (*http.MaxBytesError)(nil); errors.As(err, &tooLarge) {
		return nil, &apiError{
			status: http.StatusRequestEntityTooLarge, kind: http.StatusText(http.StatusRequestEntityTooLarge),
			message: fmt.Sprintf("the simulated engine reads at most %d bytes", maxBody), schema: true,
		}
	} else if err != nil {
		return nil, unreadable()
	}
	media, _, _ := strings.Cut(r.Header.Get("Content-Type"), ";")
	if !strings.EqualFold(strings.TrimSpace(media), "application/json") {
		e := invalid("", "")
		e.message = "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed"
		return nil, e
	}
	if len(raw) == 0 {
		return nil, invalid("body", "'type': 'missing', 'loc': 'body', 'msg': 'Field required', 'input': 'None'")
	}
	if !utf8.Valid(raw) {
		return nil, unreadable()
	}
	b := &body{}
	switch err := json.Unmarshal(raw, &b.fields); e := err.(type) {
	case nil:
		if b.fields == nil { // the JSON null
			return nil, invalid("body", "'type': 'missing', 'loc': 'body', 'msg': 'Field required', 'input': 'None'")
		}
		return b, nil
	case *json.SyntaxError:
		at, why := e.Offset-1, "Expecting value"
		if rest := bytes.TrimSpace(raw[:e.Offset]); len(rest) == len(bytes.TrimSpace(raw)) {
			at = int64(len(raw))
		}
		loc := "body." + strconv.FormatInt(at, 10)
		return nil, invalid(loc, "'type': 'json_invalid', 'loc': '"+loc+
			"', 'msg': 'JSON decode error', 'input': '<dict of 0 items>', 'ctx': {'error': '"+why+"'}")
	default:
		return nil, invalid("body", "'type': 'model_attributes_type', 'loc': 'body', "+
			"'msg': 'Input should be a valid dictionary or object to extract fields from', 'input': '"+pythonInput(raw)+"'")
	}
}

// unreadable is the framework's answer to bytes that are not text.
func unreadable() *apiError {
	return &apiError{status: http.StatusBadRequest, message: "There was an error parsing the body", kind: kindDetail}
}

// pythonInput is how an error record shows the value that it complains about.
func pythonInput(raw json.RawMessage) string {
	var v any
	if json.Unmarshal(raw, &v) != nil {
		return string(raw)
	}
	switch v := v.(type) {
	case map[string]any:
		return fmt.Sprintf("<dict of %d items>", len(v))
	case []any:
		return fmt.Sprintf("<list of %d items>", len(v))
	case string:
		return v
	case nil:
		return "None"
	case bool:
		if v {
			return "True"
		}
		return "False"
	}
	return strings.TrimSpace(string(raw))
}

func (b *body) fail(e *apiError) {
	if b.err == nil {
		b.err = e
	}
}

func (b *body) violation(key, kind, msg string) {
	loc := "body." + key
	b.fail(invalid(loc, "'type': '"+kind+"', 'loc': '"+loc+"', 'msg': '"+msg+"', 'input': '"+pythonInput(b.fields[key])+"'"))
}

// has reports whether the key is there with a value other than null.
func (b *body) has(key string) bool {
	raw, ok := b.fields[key]
	return ok && string(raw) != "null"
}

// is reports whether the key's value is spelled like that.
func (b *body) is(key, spelled string) bool { return string(b.fields[key]) == spelled }

// require demands the key; extra is added to the number of fields that the error shows.
func (b *body) require(key string, extra int) {
	if _, ok := b.fields[key]; !ok {
		loc := "body." + key
		b.fail(invalid(loc, fmt.Sprintf("'type': 'missing', 'loc': '%s', 'msg': 'Field required', 'input': '<dict of %d items>'",
			loc, len(b.fields)+extra)))
	}
}

func (b *body) text(key string) string {
	var v string
	if b.has(key) && json.Unmarshal(b.fields[key], &v) != nil {
		b.violation(key, "string_type", "Input should be a valid string")
	}
	return v
}

func (b *body) flag(key string) bool {
	var v bool
	if b.has(key) && json.Unmarshal(b.fields[key], &v) != nil {
		b.violation(key, "bool_parsing", "Input should be a valid boolean, unable to interpret input")
	}
	return v
}

func (b *body) number(key string, unset float64) float64 {
	v := unset
	if b.has(key) && json.Unmarshal(b.fields[key], &v) != nil {
		b.violation(key, "float_parsing", "Input should be a valid number, unable to parse string as a number")
	}
	return v
}

// integer accepts what the schema library does in its lax mode: integers, floats
// without a fraction and strings of digits.
func (b *body) integer(key string, unset int) int {
	if !b.has(key) {
		return unset
	}
	raw := b.fields[key]
	var digits string
	if json.Unmarshal(raw, &digits) == nil {
		if n, err := strconv.Atoi(strings.TrimSpace(digits)); err == nil {
			return n
		}
		b.violation(key, "int_parsing", "Input should be a valid integer, unable to parse string as an integer")
		return unset
	}
	var f float64
	switch {
	case json.Unmarshal(raw, &f) != nil:
		b.violation(key, "int_type", "Input should be a valid integer")
	case f != math.Trunc(f) || math.Abs(f) > 1<<53:
		b.violation(key, "int_from_float", "Input should be a valid integer, got a number with a fractional part")
	default:
		return int(f)
	}
	return unset
}

// members returns the elements of an array, none when the key is absent.
func (b *body) members(key string) []json.RawMessage {
	var v []json.RawMessage
	if b.has(key) && json.Unmarshal(b.fields[key], &v) != nil {
		b.violation(key, "list_type", "Input should be a valid list")
	}
	return v
}

// sub returns the object under key as a body of its own, empty when there is none.
func (b *body) sub(key string) *body {
	v := &body{}
	if b.has(key) && json.Unmarshal(b.fields[key], &v.fields) != nil {
		b.violation(key, "model_attributes_type", "Input should be a valid dictionary or object to extract fields from")
	}
	return v
}

// echo is the field as the client sent it, null when it did not.
func (b *body) echo(key string) any {
	if !b.has(key) {
		return nil
	}
	v, err := parseOrdered(b.fields[key])
	if err != nil {
		return nil
	}
	return v
}

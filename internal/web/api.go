package web

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// maxBody bounds the body of an API request.
const maxBody = 64 << 10

// writeJSON answers 200 with v.
func writeJSON(w http.ResponseWriter, v any) { write(w, http.StatusOK, v) }

// writeError answers with the API's form of an error.
func writeError(w http.ResponseWriter, status int, format string, args ...any) {
	var body struct {
		Error struct {
			Message string `json:"message"`
		} `json:"error"`
	}
	body.Error.Message = fmt.Sprintf(format, args...)
	write(w, status, body)
}

func write(w http.ResponseWriter, status int, v any) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false) // nosniff and the type keep browsers from reading it as HTML
	if err := e.Encode(v); err != nil {
		status = http.StatusInternalServerError
		b.Reset()
		b.WriteString(`{"error":{"message":"the answer could not be written as JSON"}}` + "\n")
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(b.Bytes())
}

// readBody decodes a small JSON object into v. Unknown fields, a second value
// and a body that is no object are errors for the client.
func readBody(w http.ResponseWriter, r *http.Request, v any) error {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		var large *http.MaxBytesError
		if errors.As(err, &large) {
			return fmt.Errorf("the body is larger than %d bytes", large.Limit)
		}
		return errors.New("the body did not arrive")
	}
	if trimmed := bytes.TrimLeft(body, " \t\r\n"); len(trimmed) == 0 || trimmed[0] != '{' {
		return errors.New("the body must be a JSON object")
	}
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return readable(err)
	}
	if _, err := d.Token(); err != io.EOF {
		return errors.New("the body must be one JSON object")
	}
	return nil
}

// readable says what a decoder found without Go's words for it.
func readable(err error) error {
	var kind *json.UnmarshalTypeError
	switch {
	case errors.As(err, &kind):
		return fmt.Errorf("%s: a %s where another kind of value belongs", kind.Field, kind.Value)
	case errors.Is(err, io.ErrUnexpectedEOF):
		return errors.New("the body ends in the middle of the JSON object")
	}
	var text *fieldError
	if errors.As(err, &text) {
		return text
	}
	message := err.Error()
	if len(message) > 6 && message[:6] == "json: " {
		message = message[6:]
	}
	return errors.New(message)
}

// fieldError is what a field's own decoding found wrong.
type fieldError struct{ message string }

func (e *fieldError) Error() string { return e.message }

// cursorOf reads the parameter before: where the last page of turns ended.
func cursorOf(q url.Values) (int64, error) {
	text := q.Get("before")
	if text == "" {
		return 0, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 1 {
		return 0, fmt.Errorf("before %q: must be what a list of turns gave as next", text)
	}
	return n, nil
}

// limitOf reads the parameter limit: a whole number from 1 to most.
func limitOf(q url.Values, otherwise, most int) (int, error) {
	text := q.Get("limit")
	if text == "" {
		return otherwise, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > most {
		return 0, fmt.Errorf("limit %q: must be 1 to %d", text, most)
	}
	return n, nil
}

// percent is a share from 0 to 100 that is written with one decimal; NaN and
// what is below 0 are not known, and null.
type percent float64

func (p percent) MarshalJSON() ([]byte, error) {
	if !p.known() {
		return []byte("null"), nil
	}
	return strconv.AppendFloat(nil, float64(p), 'f', 1, 64), nil
}

func (p percent) known() bool { return p >= 0 && !math.IsInf(float64(p), 0) }

// unknownPercent is a share that is not known.
var unknownPercent = percent(math.NaN())

// share is part of whole as a percent, not known when there is no whole.
func share(part, whole int64) percent {
	if whole <= 0 {
		return percent(math.NaN())
	}
	return percent(100 * float64(part) / float64(whole))
}

// count is a number that is null when it is negative: not measured.
type count int64

func (c count) MarshalJSON() ([]byte, error) {
	if c < 0 {
		return []byte("null"), nil
	}
	return strconv.AppendInt(nil, int64(c), 10), nil
}

// text is a string that is null when it is empty.
type text string

func (t text) MarshalJSON() ([]byte, error) {
	if t == "" {
		return []byte("null"), nil
	}
	return json.Marshal(string(t))
}

// stamp is a time in UTC with milliseconds, null when it is zero.
type stamp time.Time

func (s stamp) time() time.Time { return time.Time(s) }

func (s stamp) MarshalJSON() ([]byte, error) {
	t := s.time()
	if t.IsZero() || t.Year() > 9999 || t.Year() < 0 {
		return []byte("null"), nil
	}
	return json.Marshal(t.UTC().Truncate(time.Millisecond).Format(time.RFC3339Nano))
}

// number is any figure; NaN and infinite ones are null.
type number float64

func (n number) MarshalJSON() ([]byte, error) {
	f := float64(n)
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return []byte("null"), nil
	}
	return strconv.AppendFloat(nil, math.Round(f*1e4)/1e4, 'f', -1, 64), nil
}

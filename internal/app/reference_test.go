package app_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"lmwarden/internal/app"
	"lmwarden/internal/config"
)

// The reference of the configuration is made from its types, their comments and
// their defaults: a table in docs/config.md, and a schema for editors.
//
//	UPDATE_DOCS=1 go test -run Reference ./internal/app

const (
	configPage    = "../../docs/config.md"
	configSchema  = "../../docs/config.schema.json"
	tableBegins   = "<!-- made from the types by internal/app/reference_test.go -->\n"
	tableEnds     = "<!-- end -->\n"
	configSources = "../config/*.go"
)

func TestReferenceOfTheConfigurationIsCurrent(t *testing.T) {
	keys := configKeys(t)
	page, err := os.ReadFile(configPage)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(page), tableBegins)
	_, after, ended := strings.Cut(rest, tableEnds)
	if !ok || !ended {
		t.Fatalf("%s has no place for the table", configPage)
	}
	current(t, configPage, []byte(before+tableBegins+table(keys)+tableEnds+after))

	schema, err := json.MarshalIndent(configKey{Kind: reflect.TypeFor[config.Config](), Under: keys}.schema(true), "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	current(t, configSchema, append(schema, '\n'))
}

// current compares a file with what it should be, or writes it.
func current(t *testing.T, path string, want []byte) {
	t.Helper()
	if os.Getenv("UPDATE_DOCS") != "" {
		if err := os.WriteFile(path, want, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if is, err := os.ReadFile(path); err != nil || !bytes.Equal(is, want) {
		t.Errorf("%s is not what the types say (%v): UPDATE_DOCS=1 go test -run Reference ./internal/app", path, err)
	}
}

// configKey is one key of the file.
type configKey struct {
	Name, Path string
	Kind       reflect.Type
	Default    string
	Says       string
	Required   bool
	Under      []configKey
}

// configKeys walks the types of the configuration.
func configKeys(t *testing.T) []configKey {
	says := fieldComments(t)
	defaults := config.Default()
	defaults.Models = []config.Model{{Engines: []config.Engine{{}}}}
	defaults.Data = "lmwarden in the user's state folder"
	defaults.Fill()
	var walk func(v reflect.Value, prefix string) []configKey
	walk = func(v reflect.Value, prefix string) (keys []configKey) {
		for i := range v.NumField() {
			field := v.Type().Field(i)
			name, _, _ := strings.Cut(field.Tag.Get("yaml"), ",")
			if !field.IsExported() || name == "" {
				continue
			}
			k := configKey{Name: name, Path: prefix + name, Kind: field.Type, Says: says[v.Type().Name()+"."+field.Name]}
			value := v.Field(i)
			if many := value.Kind() == reflect.Slice && value.Type().Elem().Kind() == reflect.Struct && !isText(value.Type().Elem()); many {
				item := reflect.Zero(value.Type().Elem())
				if value.Len() > 0 {
					item = value.Index(0)
				}
				k.Under = walk(item, k.Path+"[].")
			} else if value.Kind() == reflect.Struct && !isText(value.Type()) {
				k.Under = walk(value, k.Path+".")
			} else {
				k.Default = defaultText(value)
			}
			k.Required = k.Path == "models" || k.Path == "models[].engines" || k.Path == "models[].engines[].url"
			keys = append(keys, k)
		}
		return keys
	}
	return walk(reflect.ValueOf(*defaults), "")
}

func isText(kind reflect.Type) bool {
	_, ok := reflect.New(kind).Interface().(interface{ UnmarshalText([]byte) error })
	return ok
}

func defaultText(v reflect.Value) string {
	if isText(v.Type()) && v.CanInterface() {
		if s, ok := v.Interface().(fmt.Stringer); ok && (!v.IsZero() || v.Type() == reflect.TypeFor[config.SpillThreshold]()) {
			return s.String()
		}
		return ""
	}
	switch v.Kind() {
	case reflect.Bool, reflect.String:
		return fmt.Sprint(v.Interface())
	case reflect.Int:
		if !v.IsZero() {
			return fmt.Sprint(v.Interface())
		}
	}
	return ""
}

// table lists every key that holds a value.
func table(keys []configKey) string {
	var b strings.Builder
	b.WriteString("\n| key | default | |\n| --- | --- | --- |\n")
	var rows func([]configKey)
	rows = func(keys []configKey) {
		for _, k := range keys {
			if k.Under != nil {
				rows(k.Under)
				continue
			}
			value := k.Default
			if value != "" && !strings.Contains(value, " ") {
				value = "`" + value + "`"
			}
			if k.Required {
				value = "required"
			}
			fmt.Fprintf(&b, "| `%s` | %s | %s |\n", k.Path, value, strings.ReplaceAll(k.Says, "|", "\\|"))
		}
	}
	rows(keys)
	b.WriteString("\n")
	return b.String()
}

// schema is the key's JSON Schema.
func (k configKey) schema(root bool) map[string]any {
	s := map[string]any{}
	if root {
		s["$schema"] = "https://json-schema.org/draft/2020-12/schema"
		s["title"] = "LM Warden's configuration"
	}
	if k.Says != "" {
		s["description"] = k.Says
	}
	switch {
	case k.Under != nil:
		properties, required := map[string]any{}, []string{}
		for _, u := range k.Under {
			properties[u.Name] = u.schema(false)
			if u.Required {
				required = append(required, u.Name)
			}
		}
		object := map[string]any{"type": "object", "additionalProperties": false, "properties": properties}
		if len(required) > 0 {
			object["required"] = required
		}
		if k.Kind.Kind() != reflect.Slice {
			for name, v := range object {
				s[name] = v
			}
			return s
		}
		s["type"], s["items"] = "array", object
		if k.Required {
			s["minItems"] = 1
		}
	case k.Kind == reflect.TypeFor[config.Duration]():
		s["type"], s["pattern"] = "string", `^([0-9.]+(ns|us|µs|ms|s|m|h))+$`
	case k.Kind == reflect.TypeFor[config.ByteSize]():
		s["type"], s["pattern"] = "string", `^[0-9]+ ?(B|KiB|MiB|GiB)$`
	case k.Kind == reflect.TypeFor[config.SpillThreshold]():
		s["oneOf"] = []any{map[string]any{"const": "auto"}, map[string]any{"type": "integer", "minimum": 1}}
	case k.Kind.Kind() == reflect.Slice:
		s["type"], s["items"] = "array", map[string]any{"type": "string"}
	case k.Kind.Kind() == reflect.Bool:
		s["type"] = "boolean"
	case k.Kind.Kind() == reflect.Int:
		s["type"] = "integer"
	default:
		s["type"] = "string"
	}
	if allowed := words[k.Path]; allowed != nil {
		s["enum"] = allowed
	}
	if k.Default != "" && k.Path != "data" {
		s["default"] = json.RawMessage(k.Default)
		if !json.Valid([]byte(k.Default)) {
			s["default"] = k.Default
		}
	}
	return s
}

// words are the keys that take a word of a list.
var words = map[string][]string{
	"models[].policy": app.Policies(),
	"log.level":       {"debug", "info", "warn", "error"},
	"log.format":      {"text", "json"},
}

// fieldComments maps Type.Field to its comment in one line, with the name of the
// field as it stands in the file.
func fieldComments(t *testing.T) map[string]string {
	files, err := filepath.Glob(configSources)
	if err != nil || len(files) == 0 {
		t.Fatal("no sources: ", err)
	}
	says := map[string]string{}
	for _, file := range files {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(parsed, func(n ast.Node) bool {
			spec, ok := n.(*ast.TypeSpec)
			if !ok {
				return true
			}
			structure, ok := spec.Type.(*ast.StructType)
			if !ok {
				return true
			}
			for _, f := range structure.Fields.List {
				for _, name := range f.Names {
					text := f.Doc.Text()
					if text == "" {
						text = f.Comment.Text()
					}
					text = strings.Join(strings.Fields(text), " ")
					for _, lead := range []string{name.Name + " is ", name.Name + " are ", name.Name + " "} {
						if rest, ok := strings.CutPrefix(text, lead); ok {
							text = rest
							break
						}
					}
					if text != "" {
						text = strings.ToUpper(text[:1]) + text[1:]
					}
					says[spec.Name.Name+"."+name.Name] = text
				}
			}
			return true
		})
	}
	return says
}

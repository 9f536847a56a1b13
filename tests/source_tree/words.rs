//! Words that may not come back. A reader would have to learn them here and nowhere else, and the field
//! has a term for each.

use proc_macro2::TokenStream;
use syn::visit::{self, Visit};

use super::check::{all, finds};
use super::fault::{Fault, assert_none_but};
use super::source::{Source, everywhere};

/// A row of the table.
struct Term {
    /// Words between bars; a phrase has `_` between its words.
    words: &'static str,
    /// The term to use.
    instead: &'static str,
    /// Kinds of names that may not have the words.
    kinds: &'static [Kind],
    /// Whether only names of a single word are meant.
    alone: bool,
    /// Whether comments and messages may not have the words either.
    prose: bool,
    /// Paths that the row is for.
    within: &'static [&'static str],
    /// A phrase of another meaning.
    but: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Type,
    Function,
    Field,
    Module,
    Constant,
    Variable,
}

use Kind::{Constant, Field, Function, Module, Type, Variable};

const ALL: &[Kind] = &[Type, Function, Field, Module, Constant, Variable];

/// For names and prose everywhere.
const fn term(words: &'static str, instead: &'static str) -> Term {
    Term {
        words,
        instead,
        kinds: ALL,
        alone: false,
        prose: true,
        within: &[""],
        but: "",
    }
}

/// For prose only.
const fn prose(words: &'static str, instead: &'static str) -> Term {
    Term {
        kinds: &[],
        ..term(words, instead)
    }
}

impl Term {
    const fn names(self, kinds: &'static [Kind]) -> Self {
        Self {
            kinds,
            prose: false,
            ..self
        }
    }

    const fn alone(self) -> Self {
        Self {
            alone: true,
            ..self
        }
    }

    const fn within(self, within: &'static [&'static str]) -> Self {
        Self { within, ..self }
    }

    const fn but(self, but: &'static str) -> Self {
        Self { but, ..self }
    }
}

const LIBRARY: &[&str] = &["src/"];
const KERNEL: &[&str] = &["src/kernel/"];
/// The algorithm's files, which have no GM. The model of the Ascend has, and tiles that mirror it.
const ALGORITHM: &[&str] = &[
    "src/attend.rs",
    "src/epilogue.rs",
    "src/fallback.rs",
    "src/kernel/",
    "src/plan.rs",
    "src/problem/",
    "src/source.rs",
];

#[rustfmt::skip]
const TERMS: &[Term] = &[
    term("ask|asks|asked|asking", "prefetch"),
    term("requests", "prefetch").names(&[Type, Module]).alone().within(KERNEL),
    term("ahead", "prefetch window, distance"),
    term("reach|lead|gap", "prefetch window, end, distance").names(ALL).within(LIBRARY),
    term("share|shares", "prefetch budget").names(ALL).within(LIBRARY),
    // In prose and for variables it may be a direction.
    term("left", "skipped strips").names(&[Type, Field, Constant]),
    term("lie|lies|lying", "in place, unpacked, contiguous or strided, whichever is meant"),
    term("together", "fused (panels), concatenated (rows), merged or reduced (partial results)"),
    term("settle|settles|settled|settling", "restore the layout, permute columns"),
    term("stream|streams|streamed", "fused kernel; \"streaming\" for memory traffic only")
        .within(LIBRARY).but("instruction_stream"),
    term("few", "skinny (matrices of few rows), or the number").names(ALL),
    term("close|end|meet|meets|finish", "epilogue; normalise, merge, convert, store")
        .names(&[Type, Function, Module]).alone().within(LIBRARY),
    term("keep|keeps|kept|keeping", "store"),
    // A number may be whole.
    term("whole", "unrounded (P in FP32), full, all").names(ALL),
    term("widen|widens|widened|widening", "convert (BF16 to FP32), dequantize (FP8, INT8, Q8_0)"),
    term("place|places", "index, slot, offset").names(ALL).but("in_place"),
    prose("ranges_of_keys|range_of_keys", "KV splits"),
    // Of measure in prose.
    term("unit|units", "sequence, request or query, whichever is meant")
        .names(ALL).alone().within(LIBRARY),
    prose("becomes_of|become_of|became_of|what_is_there|so_many",
        "the thing itself: \"the partial result\", \"`n` rows\""),
    term("house|houses", "source tree, layout"),
    term("piece|pieces", "tasks, row groups"),
    term("gm", "staging buffer").within(ALGORITHM),
];

/// Files and folders to be cleaned.
const NOT_CLEAN: &[&str] = &[];

#[test]
fn words_are_the_fields() {
    assert_none_but(NOT_CLEAN, all(&everywhere(), words));
}

fn words(source: &Source) -> Vec<Fault> {
    let within = |term: &&Term| {
        let mut paths = term.within.iter();
        paths.any(|path| source.path.starts_with(path))
    };
    let terms: Vec<&Term> = TERMS.iter().filter(within).collect();
    let mut faults = Vec::new();
    for name in names(&source.file) {
        let words = name_words(&name.ident);
        let is_for =
            |term: &&&Term| term.kinds.contains(&name.kind) && (words.len() == 1 || !term.alone);
        for term in terms.iter().filter(is_for) {
            for (_, word) in term.find(&words) {
                let instead = term.instead;
                let what = format!("\"{word}\" in the name {}; say: {instead}", name.ident);
                faults.push(source.fault(name.line, what));
            }
        }
    }
    for paragraph in paragraphs(source) {
        let words: Vec<String> = paragraph.iter().map(|(_, word)| word.clone()).collect();
        for term in terms.iter().filter(|term| term.prose) {
            for (i, word) in term.find(&words) {
                let word = word.replace('_', " ");
                let what = format!("\"{word}\"; say: {}", term.instead);
                faults.push(source.fault(paragraph[i].0, what));
            }
        }
    }
    faults.sort_by_key(|fault| fault.line);
    faults
}

impl Term {
    /// Where the words are, and which.
    fn find(&self, text: &[String]) -> Vec<(usize, &'static str)> {
        let at = |i: usize, phrase: &str| {
            let mut words = phrase.split('_').enumerate();
            words.all(|(j, word)| text.get(i + j).is_some_and(|other| other == word))
        };
        let mut found = Vec::new();
        for i in 0..text.len() {
            let before = self.but.split('_').count() - 1;
            let other_meaning = (i.saturating_sub(before)..=i).any(|start| at(start, self.but));
            let word = self.words.split('|').find(|word| at(i, word));
            found.extend(word.filter(|_| !other_meaning).map(|word| (i, word)));
        }
        found
    }
}

// -------------------------------------------------------------------------------------------------
// Prose
// -------------------------------------------------------------------------------------------------

/// Words of comments and messages, in lower case, with their lines. Backticks and fences hold code.
fn paragraphs(source: &Source) -> Vec<Vec<(usize, String)>> {
    let mut all = vec![Vec::new()];
    let mut last = 0;
    let mut fenced = false;
    let mut code = false;
    for comment in &source.comments {
        if comment.line > last + 1 {
            all.push(Vec::new());
            (fenced, code) = (false, false);
        }
        last = comment.line;
        let text = comment.text.trim_start_matches(['/', '!', '*']).trim();
        if text.starts_with("```") {
            fenced = !fenced;
        } else if !fenced {
            let words = all.last_mut().unwrap();
            prose_words(text, comment.line, &mut code, words);
        }
    }
    // A string of one word is a name. This file's strings are the words themselves.
    let message = |text: &str| text.starts_with('"') && text.contains(' ');
    let messages = source.tokens.iter().filter(|token| message(&token.text));
    for token in messages.filter(|_| source.path != "tests/source_tree/words.rs") {
        let mut words = Vec::new();
        prose_words(&token.text, token.line, &mut false, &mut words);
        all.push(words);
    }
    all
}

fn prose_words(text: &str, line: usize, code: &mut bool, words: &mut Vec<(usize, String)>) {
    for (i, part) in text.split('`').enumerate() {
        *code ^= i > 0;
        if !*code {
            let parts = part.split(|c: char| !c.is_alphanumeric() && c != '_');
            let parts = parts.filter(|part| !part.is_empty());
            words.extend(parts.map(|part| (line, part.to_lowercase())));
        }
    }
}

// -------------------------------------------------------------------------------------------------
// Names
// -------------------------------------------------------------------------------------------------

/// What a file defines.
struct Name {
    ident: String,
    kind: Kind,
    line: usize,
}

fn names(file: &syn::File) -> Vec<Name> {
    let mut names = Defined(Vec::new());
    names.visit_file(file);
    names.0
}

/// In lower case: `ranges_of`, `RangesOf`, `RANGES_OF`.
fn name_words(ident: &str) -> Vec<String> {
    let mut words = Vec::new();
    for part in ident.split('_').filter(|part| !part.is_empty()) {
        let mut word = String::new();
        let mut small = false;
        for c in part.chars() {
            if c.is_uppercase() && small {
                words.push(std::mem::take(&mut word));
            }
            small = !c.is_uppercase();
            word.extend(c.to_lowercase());
        }
        words.push(word);
    }
    words
}

struct Defined(Vec<Name>);

impl Defined {
    fn add(&mut self, ident: &syn::Ident, kind: Kind) {
        self.0.push(Name {
            ident: ident.to_string(),
            kind,
            line: ident.span().start().line,
        });
    }

    /// What a macro's tokens define: a name behind a keyword.
    fn tokens(&mut self, tokens: TokenStream) {
        let mut keyword = String::new();
        for tree in tokens {
            match tree {
                proc_macro2::TokenTree::Group(group) => self.tokens(group.stream()),
                proc_macro2::TokenTree::Ident(ident) => {
                    let kind = match keyword.as_str() {
                        "fn" => Some(Function),
                        "struct" | "enum" | "trait" | "type" => Some(Type),
                        "mod" => Some(Module),
                        "const" | "static" => Some(Constant),
                        "let" | "mut" => Some(Variable),
                        _ => None,
                    };
                    let own = ["fn", "mut"].contains(&ident.to_string().as_str());
                    if let Some(kind) = kind.filter(|_| !own) {
                        self.add(&ident, kind);
                    }
                    keyword = ident.to_string();
                }
                _ => keyword.clear(),
            }
        }
    }
}

impl<'ast> Visit<'ast> for Defined {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        use syn::Item as I;
        match item {
            I::Const(item) => self.add(&item.ident, Constant),
            I::Enum(item) => self.add(&item.ident, Type),
            I::Macro(item) => {
                if let Some(ident) = &item.ident {
                    self.add(ident, Function);
                }
            }
            I::Mod(item) => self.add(&item.ident, Module),
            I::Static(item) => self.add(&item.ident, Constant),
            I::Struct(item) => self.add(&item.ident, Type),
            I::Trait(item) => self.add(&item.ident, Type),
            I::Type(item) => self.add(&item.ident, Type),
            I::Union(item) => self.add(&item.ident, Type),
            _ => {}
        }
        visit::visit_item(self, item);
    }

    fn visit_signature(&mut self, signature: &'ast syn::Signature) {
        self.add(&signature.ident, Function);
        visit::visit_signature(self, signature);
    }

    // Those of `impl Trait for` are the trait's.
    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        let defined = self.0.len();
        visit::visit_item_impl(self, item);
        if item.trait_.is_some() {
            let functions = item.items.iter().filter_map(|item| match item {
                syn::ImplItem::Fn(function) => Some(function.sig.ident.to_string()),
                _ => None,
            });
            let functions: Vec<String> = functions.collect();
            let mut i = 0;
            self.0.retain(|name| {
                i += 1;
                i <= defined || name.kind != Function || !functions.contains(&name.ident)
            });
        }
    }

    fn visit_impl_item_const(&mut self, item: &'ast syn::ImplItemConst) {
        self.add(&item.ident, Constant);
        visit::visit_impl_item_const(self, item);
    }

    fn visit_trait_item_const(&mut self, item: &'ast syn::TraitItemConst) {
        self.add(&item.ident, Constant);
        visit::visit_trait_item_const(self, item);
    }

    fn visit_trait_item_type(&mut self, item: &'ast syn::TraitItemType) {
        self.add(&item.ident, Type);
        visit::visit_trait_item_type(self, item);
    }

    fn visit_variant(&mut self, variant: &'ast syn::Variant) {
        self.add(&variant.ident, Type);
        visit::visit_variant(self, variant);
    }

    fn visit_field(&mut self, field: &'ast syn::Field) {
        if let Some(ident) = &field.ident {
            self.add(ident, Field);
        }
        visit::visit_field(self, field);
    }

    fn visit_pat_ident(&mut self, pattern: &'ast syn::PatIdent) {
        self.add(&pattern.ident, Variable);
        visit::visit_pat_ident(self, pattern);
    }

    fn visit_field_pat(&mut self, pattern: &'ast syn::FieldPat) {
        // `S { field }` takes the field's name.
        if pattern.colon_token.is_some() {
            visit::visit_field_pat(self, pattern);
        }
    }

    fn visit_type_param(&mut self, param: &'ast syn::TypeParam) {
        self.add(&param.ident, Type);
        visit::visit_type_param(self, param);
    }

    fn visit_const_param(&mut self, param: &'ast syn::ConstParam) {
        self.add(&param.ident, Constant);
        visit::visit_const_param(self, param);
    }

    fn visit_use_rename(&mut self, rename: &'ast syn::UseRename) {
        self.add(&rename.rename, Variable);
    }

    fn visit_macro(&mut self, mac: &'ast syn::Macro) {
        self.tokens(mac.tokens.clone());
    }
}

// -------------------------------------------------------------------------------------------------
// The checker, checked
// -------------------------------------------------------------------------------------------------

#[test]
fn finds_words_in_names() {
    for (path, text, line, says) in [
        (
            "src/x.rs",
            "fn asks_for_keys() {}",
            1,
            "\"asks\" in the name asks_for_keys; say: prefetch",
        ),
        ("src/x.rs", "fn tasks(basket: u8) { basket.asks() }", 0, ""),
        (
            "src/x.rs",
            "use other::ask;\nuse other::keep as store;",
            0,
            "",
        ),
        ("src/x.rs", "use other::store as keep;", 1, "store"),
        ("src/x.rs", "struct KeepRows;", 1, "KeepRows"),
        (
            "src/x.rs",
            "enum E {\nA,\nLeftStrips }",
            3,
            "skipped strips",
        ),
        ("src/x.rs", "struct S {\nleft: u8 }", 2, "skipped strips"),
        ("src/x.rs", "fn f(left: u8) { let right = left; }", 0, ""),
        ("src/x.rs", "const KEPT: u8 = 0;", 1, "store"),
        ("src/x.rs", "mod house {}", 1, "source tree"),
        ("src/x.rs", "fn f() {\nlet (a, whole) = x;\n}", 2, "full"),
        ("src/x.rs", "fn f() { g(|pieces| 1) }", 1, "row groups"),
        (
            "src/x.rs",
            "fn f() { match x { S { place: at } => at } }",
            0,
            "",
        ),
        ("src/x.rs", "fn keys_in_place() {}", 0, ""),
        ("src/x.rs", "fn place_of_key() {}", 1, "slot"),
        ("src/x.rs", "trait T { fn close(self); }", 1, "epilogue"),
        (
            "src/x.rs",
            "impl T for X { fn close(self) {} fn f(ask: u8) {} }",
            1,
            "ask",
        ),
        ("src/x.rs", "fn close_to(a: f32) {}", 0, ""),
        ("tests/x.rs", "fn close() {}", 0, ""),
        (
            "src/x.rs",
            "macro_rules! m { () => {\nfn few_rows() {} } }",
            2,
            "skinny",
        ),
        ("src/kernel/x.rs", "struct Requests;", 1, "prefetch"),
        ("src/kernel/x.rs", "fn f(requests: u8) {}", 0, ""),
        ("src/kernel/x.rs", "fn to_gm() {}", 1, "staging buffer"),
        ("src/tile.rs", "fn to_gm() {}", 0, ""),
        ("src/x.rs", "struct Unit;", 1, "sequence"),
        ("src/x.rs", "fn f<const AHEAD: usize>() {}", 1, "window"),
    ] {
        finds(words, path, text, line, says);
    }
}

#[test]
fn finds_words_in_prose() {
    // Parted, as this test is prose too.
    for (text, line) in [
        ("// The host a__sks for keys.", 1),
        ("/// K__eeps P.\nfn f() {}", 1),
        ("fn f() {\n// As they l__ie\n}", 2),
        ("// So\n// m__any rows", 1),
        ("// So\n\n// m__any rows", 0),
        ("// `k__eep` and the code `\n// l__ies` on", 0),
        ("//! ```\n//! k__eep(x);\n//! ```", 0),
        ("const X: &str = \"rows w__idened here\";", 1),
        ("const X: &str = \"k__eep\";", 0),
        ("// an instruction st__ream", 0),
        ("// a st__ream", 1),
        ("// tasks, basket, house_rules", 0),
    ] {
        finds(words, "src/x.rs", &text.replace("__", ""), line, "say: ");
    }
}

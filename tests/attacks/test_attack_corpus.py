"""The corpus itself: every line of the threat list is here, every attack says what it is, and the README knows it."""

from __future__ import annotations

import table


def test_every_line_of_the_threat_list_has_an_attack():
    assert {item.line for item in table.load()} == set(range(1, 43))


def test_every_attack_tells_its_idea():
    assert [key for key in table.attacks(table.load()) if not key[2]] == []


def test_ids_are_unique():
    ids = [item.id for item in table.load()]
    assert len(set(ids)) == len(ids)


def test_the_readme_lists_every_attack():
    shown = table.README.read_text()
    assert [name for line, name, _ in table.attacks(table.load()) if f"| {line} | {name} |" not in shown] == []

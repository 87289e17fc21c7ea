"""Trained adapters for other people: portable LoRA, model card, folders made elsewhere, verification.

portable.export_lora · card.model_card · foreign.inspect_adapter, load_foreign · verify.verify_native, verify_portable
"""

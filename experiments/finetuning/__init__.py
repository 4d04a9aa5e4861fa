"""Fine-tuning: a LoRA adapter trained on a task's own answers."""

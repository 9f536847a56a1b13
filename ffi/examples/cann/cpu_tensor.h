// A stand-in for CANN's header of this name: see README.md in this folder.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

namespace aicpu {

class TensorShape {
public:
    explicit TensorShape(std::vector<int64_t> dims) : dims_(std::move(dims)) {}
    std::vector<int64_t> GetDimSizes() const { return dims_; }
    int64_t GetDimSize(int32_t index) const { return dims_[static_cast<std::size_t>(index)]; }

private:
    std::vector<int64_t> dims_;
};

class Tensor {
public:
    Tensor(void *data, uint64_t bytes, std::vector<int64_t> dims)
        : data_(data), bytes_(bytes), shape_(std::make_shared<TensorShape>(std::move(dims))) {}
    std::shared_ptr<TensorShape> GetTensorShape() const { return shape_; }
    void *GetData() const { return data_; }
    uint64_t GetDataSize() const { return bytes_; }

private:
    void *data_;
    uint64_t bytes_;
    std::shared_ptr<TensorShape> shape_;
};

}  // namespace aicpu
